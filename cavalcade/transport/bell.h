/* How processes read, write and sleep on words (int64) in shared memory. Sleep ends when the word changes: by a futex
   on Linux; elsewhere after a nap of a millisecond, because nobody can wake the sleeper. */

#ifndef CAVALCADE_BELL_H
#define CAVALCADE_BELL_H

#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* for syscall */
#endif

#include <stdint.h>

#if defined(__GNUC__)
#define LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define STORE(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
/* The resting process stores its flag and then looks for work; the ringing one stores work and then looks for the flag.
   A store that moved behind the look that follows it would let both sides miss each other, hence sequential order. */
#define LOAD_AFTER(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define STORE_BEFORE(p, v) __atomic_store_n(p, v, __ATOMIC_SEQ_CST)
#define ADD(p, v) __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST)
/* A reader copies a value and then looks whether the writer has overwritten it; the writer says that it will overwrite
   the value and then does so. These fences keep the copy before the look and the writing after the saying. They cost
   nothing on x86, but ARM needs them. */
#define READS_ARE_DONE() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define WRITES_MAY_BEGIN() __atomic_thread_fence(__ATOMIC_RELEASE)
#else /* MSVC: volatile reads and writes are ordered on the processors it compiles for */
#include <intrin.h>
#define LOAD(p) (*(volatile int64_t *)(p))
#define STORE(p, v) (*(volatile int64_t *)(p) = (v))
#define LOAD_AFTER(p) _InterlockedExchangeAdd64((volatile int64_t *)(p), 0)
#define STORE_BEFORE(p, v) _InterlockedExchange64((volatile int64_t *)(p), v)
#define ADD(p, v) _InterlockedExchangeAdd64((volatile int64_t *)(p), v)
#define READS_ARE_DONE() _ReadWriteBarrier()
#define WRITES_MAY_BEGIN() _ReadWriteBarrier()
#endif

#if defined(__linux__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAKE(bell) syscall(SYS_futex, (int32_t *)(bell), FUTEX_WAKE, 1, NULL, NULL, 0)

static void sleep_until_rung(int64_t *bell, int32_t seen, double seconds) {
    struct timespec span = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    syscall(SYS_futex, (int32_t *)bell, FUTEX_WAIT, seen, &span, NULL, 0);
}
#else
#define WAKE(bell) ((void)0)
#define NAP 0.001 /* seconds */

#if defined(_WIN32)
#include <windows.h>
static void sleep_until_rung(int64_t *bell, int32_t seen, double seconds) {
    (void)bell, (void)seen;
    Sleep((DWORD)((seconds < NAP ? seconds : NAP) * 1e3));
}
#else
#include <time.h>
static void sleep_until_rung(int64_t *bell, int32_t seen, double seconds) {
    (void)bell, (void)seen;
    struct timespec span = {0, (long)((seconds < NAP ? seconds : NAP) * 1e9)};
    nanosleep(&span, NULL);
}
#endif
#endif

#endif
