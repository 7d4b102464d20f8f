/* The page "still working": its button is pressed after so many seconds, until there is an answer. */
const button = document.querySelector("[data-distlock-again]");
if (button) setTimeout(() => button.click(), button.dataset.distlockAgain * 1000);
