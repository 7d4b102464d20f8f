/** Wrong use of a mutex, which would not have worked. */
export class MutexError extends Error {}

/** The page or the worker may not share memory. The message says which header is missing. */
export class IsolationError extends MutexError {}

/** The mutex was not free in time. */
export class LockTimeoutError extends MutexError {}

/** Throw {@link IsolationError} unless this page or worker may share memory. */
export function checkIsolation(): void;

/** Throw {@link IsolationError} unless the script of a worker, and this module, are served as workers need them.
 * Browsers refuse such a worker without a reason. For pages. */
export function checkWorkerScript(url: string | URL): Promise<void>;

export interface WaitOptions {
  /** Milliseconds. Without it: as long as it takes. */
  timeout?: number;
  signal?: AbortSignal;
}

/** A fair mutex between a page and its workers: first come, first served. */
export class WorkerMutex {
  private constructor();

  /** A new mutex. Create it in the page: its event loop notices when workers end.
   * @param options.members how many threads may join; 63, at most 254 */
  static create(options?: { members?: number }): WorkerMutex;

  /** The same mutex in another thread.
   * @param shared the {@link WorkerMutex.shared} of its creator, from a message */
  static join(shared: SharedArrayBuffer): Promise<WorkerMutex>;

  /** What another thread needs to join: post it to the worker. */
  readonly shared: SharedArrayBuffer;

  /** What it promises: exclusion among the threads that share this memory, and nowhere else. */
  readonly guarantee: "shared-memory";

  /** True while this holds the mutex after a worker that ended inside its section: its work may be half done. */
  readonly abandoned: boolean;

  /** Block this worker until it holds the mutex.
   * @param timeout milliseconds, then {@link LockTimeoutError} */
  lock(timeout?: number): void;

  /** Take the mutex if it comes free within `timeout` milliseconds; 0, the default, never blocks. */
  tryLock(timeout?: number): boolean;

  /** Wait for the mutex without blocking, also on a page. */
  lockAsync(options?: WaitOptions): Promise<void>;

  /** Give the mutex to the thread that has waited longest. */
  unlock(): void;

  /** Call `callback` while holding the mutex. If it returns a promise, the mutex is held until that is settled. */
  withLock<T>(callback: (mutex: WorkerMutex) => T, timeout?: number): T;

  /** The same without blocking, also on a page. */
  withLockAsync<T>(callback: (mutex: WorkerMutex) => T | PromiseLike<T>, options?: WaitOptions): Promise<T>;

  /** End the membership of this thread. */
  close(): void;
}
