// The threads of one step, which stay together from its first layer to its last.
//
// An operator on its own hands its work to threads and waits for them; in a step of some 300 small
// operators that costs more than the work. Here all threads walk through the same stages, each
// taking its share, and meet at a barrier after each stage. They wait by looking (a stage takes
// microseconds, and being woken takes longer), and let others run where that lasts too long: when
// another process has one of the cores, the thread that is waited for needs one to get on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace minillm {

// Looks before a waiting thread lets others run: about 100 µs. None where there are more threads
// than cores, and what is waited for may need this very core.
constexpr int PATIENCE = 4096;

inline void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
  __asm__ __volatile__("yield");
#endif
}

// How many threads may work where nobody says it: as many as OpenMP has, and one in a forked
// process, where the others are gone and OpenMP would wait for them without end. In linear.cpp.
int usual_threads();

// What all threads of a team share.
struct Meeting {
  alignas(64) std::atomic<int64_t> arrived{0};
  alignas(64) std::atomic<int64_t> round{0};
  alignas(64) std::atomic<int64_t> ticket{0};
  double* seconds = nullptr;  // per stage, or null: not measured
  int patience = PATIENCE;
};

// A part of a piece of work: from `first` up to `last`.
struct Share {
  int64_t first, last;
};

// One thread's view of its team.
class Team {
 public:
  Team(Meeting& meeting, int64_t thread, int64_t threads)
      : thread(thread), threads(threads), meeting(meeting) {
    if (timed()) since = std::chrono::steady_clock::now();
  }

  const int64_t thread, threads;

  // This thread's share of n pieces, in whole units.
  Share share(int64_t n, int64_t unit = 1) const {
    const int64_t units = (n + unit - 1) / unit;
    const int64_t first = units * thread / threads * unit;
    const int64_t last = units * (thread + 1) / threads * unit;
    return {first < n ? first : n, last < n ? last : n};
  }

  // The next piece of work that nobody has, for pieces of unequal size. `finish` puts it back to 0.
  int64_t next() { return meeting.ticket.fetch_add(1, std::memory_order_relaxed); }

  // Ends a stage: returns once all threads are here, and what they wrote can be read.
  void finish(int stage) {
    if (threads > 1) wait();
    else meeting.ticket.store(0, std::memory_order_relaxed);
    if (timed()) {
      const auto now = std::chrono::steady_clock::now();
      meeting.seconds[stage] += std::chrono::duration<double>(now - since).count();
      since = now;
    }
  }

 private:
  bool timed() const { return thread == 0 && meeting.seconds; }

  void wait() {
    const int64_t round = meeting.round.load(std::memory_order_relaxed);
    if (meeting.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
      meeting.arrived.store(0, std::memory_order_relaxed);
      meeting.ticket.store(0, std::memory_order_relaxed);
      meeting.round.store(round + 1, std::memory_order_release);
      return;
    }
    int looks = 0;
    while (meeting.round.load(std::memory_order_acquire) == round) {
      if (looks == meeting.patience) {
        std::this_thread::yield();
      } else {
        relax();
        looks++;
      }
    }
  }

  Meeting& meeting;
  std::chrono::steady_clock::time_point since;
};

// Runs work(team) in so many threads of OpenMP's pool, or in fewer where it gives fewer.
template <typename Work>
void run_team(int64_t threads, double* seconds, Work work) {
  Meeting meeting;
  meeting.seconds = seconds;
#ifdef _OPENMP
  if (threads > 1) {
    if (threads > omp_get_num_procs()) meeting.patience = 0;
#pragma omp parallel num_threads(int(threads))
    {
      Team team(meeting, omp_get_thread_num(), omp_get_num_threads());
      work(team);
    }
    return;
  }
#endif
  Team team(meeting, 0, 1);
  work(team);
}

}  // namespace minillm
