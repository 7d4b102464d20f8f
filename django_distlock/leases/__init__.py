"""The table of leases that people hold through web pages: edit locks of objects, and names that browsers lock.

``rows`` has what holders and saves do, ``queue`` the waiting places for names, ``upkeep`` what operators need.
"""
