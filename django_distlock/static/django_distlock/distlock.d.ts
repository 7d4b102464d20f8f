/** Locks between tabs, browsers and devices, in the shape of Web Locks. All times are in milliseconds. */

/** How strong a lock is.
 * - `"lease"`: a lease of the server with a fence. A view under `@requires_lock` refuses what comes too late.
 * - `"browser"`: a Web Lock between the tabs of this browser.
 * - `"best-effort"`: a record in localStorage, where there are no Web Locks; two tabs may hold it in rare cases.
 */
export type Guarantee = "lease" | "browser" | "best-effort";

/** Why a lock was lost. */
export type LostReason =
  | "expired"
  | "max_hold"
  | "page"
  | "logged_out"
  | "permission"
  | "grant"
  | "broken"
  | "taken"
  | "released"
  | "stolen";

/** Why a lock was refused. */
export type RefusedReason =
  | "grant"
  | "logged_out"
  | "permission"
  | "request"
  | "quota"
  | "csrf"
  | "unreachable"
  | "endpoint";

export class LockError extends Error {
  readonly reason: LostReason | RefusedReason | "timeout";
}

/** The lock was not free within `timeout`. */
export class LockTimeoutError extends LockError {
  readonly reason: "timeout";
}

/** A lock that was held is lost. It is the reason of `lock.signal`, and what `request()` throws after the callback. */
export class LockLostError extends LockError {
  readonly reason: LostReason;
}

export interface Lock {
  readonly guarantee: Guarantee;
  /** Of a lock of this browser. */
  readonly name: string | undefined;
  readonly id: string;
  /** Of a lease of the server: rises with each holder. */
  readonly fence: number | undefined;
  /** Milliseconds until the lease ends unless it is renewed, 0 once it is lost or released; `Infinity` without a lease. */
  readonly expiresIn: number;
  /** Aborted with a `LockLostError` when the lock is lost; not by a release. */
  readonly signal: AbortSignal;
  /** For requests to views under `@requires_lock`; empty without a lease. */
  readonly headers: Record<string, string>;
  /** Give it back. Calling it again is harmless. Resolves when the server knows it, or cannot be reached. */
  release(): Promise<void>;
}

interface Options {
  /** Stop waiting after so many milliseconds, with a `LockTimeoutError`. */
  timeout?: number;
  /** Stop waiting, with the reason of the signal. */
  signal?: AbortSignal;
  /** Milliseconds that the lease lives without a renewal; at most what the grant allows. */
  ttl?: number;
  /** `"server"` (the default) takes a grant, `"browser"` any name. */
  scope?: "server" | "browser";
}

export interface WaitOptions extends Options {
  ifAvailable?: false;
}

export interface TryOptions extends Options {
  /** Do not wait: the lock is null if it is not free. */
  ifAvailable: boolean;
}

export interface ManagerOptions {
  /** Where `django_distlock.browser.urls` are included. Locks of the browser need none. */
  endpoint?: string;
  /** The CSRF token, or what gets it; called with true if the one before was refused. Without it the script takes
   * the token of a form on the page, or asks the server. */
  csrf?: string | ((refused: boolean) => string | Promise<string>);
  fetch?: typeof fetch;
  /** `"auto"` uses server-sent events where tabs can share a stream; true uses them everywhere; false only polls. */
  events?: "auto" | boolean;
  /** Milliseconds that a new record in localStorage must stay unchanged. */
  settle?: number;
}

/** A lease of this user, on any device. */
export interface HeldLease {
  readonly id: string;
  readonly name: string;
  readonly fence: number;
  /** Seconds since it was acquired, and until it ends unless it is renewed. */
  readonly age: number;
  readonly expires_in: number;
}

/** A request of this tab that waits. */
export interface PendingRequest {
  readonly id: string;
  readonly grant: string;
  /** The label of who has the lock, and how many are ahead; null until the server has answered. */
  readonly holder: string | null;
  readonly place: number | null;
}

export class LockManager {
  constructor(options?: ManagerOptions);
  /** Call back with the lock, and release it when the callback has ended. Throws `LockLostError` if it was lost. */
  request<T>(grant: string, callback: (lock: Lock) => T): Promise<Awaited<T>>;
  request<T>(grant: string, options: WaitOptions, callback: (lock: Lock) => T): Promise<Awaited<T>>;
  request<T>(grant: string, options: TryOptions, callback: (lock: Lock | null) => T): Promise<Awaited<T>>;
  /** A lock until `release()` is called or the page is left. */
  hold(grant: string, options?: WaitOptions): Promise<Lock>;
  hold(grant: string, options: TryOptions): Promise<Lock | null>;
  query(): Promise<{ held: HeldLease[]; pending: PendingRequest[] }>;
}
