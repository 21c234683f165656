// SPDX-License-Identifier: Apache-2.0
#include "kernels/team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hocket::kernels {
namespace {

/// Time for which a thread looks for a change before it sleeps. To wake a sleeping thread takes as
/// long, and the kernels of a step of generation follow each other sooner.
constexpr std::chrono::microseconds kSpin(40);

/// Threads of all teams of the process. Where they are more than the processors, one that spins
/// keeps another from its work.
std::atomic<unsigned> threads_of_teams = 0;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Returns once done() is true, or kSpin is over, or at once where threads outnumber processors.
template <class Done>
void spin(const Done& done) {
  static const unsigned processors = std::thread::hardware_concurrency();
  if (threads_of_teams.load(std::memory_order_relaxed) > processors) return;
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
}

/// One call of run_parts; lives on the caller's stack until every helper has left it.
struct Job {
  Part run;
  void* context;
  int64_t parts;
  int64_t limit;  ///< threads that may work on it
  std::atomic<int64_t> next = 0;
  std::mutex mutex = {};
  std::exception_ptr error = {};  ///< guarded by mutex: the first one

  void work(int64_t thread) {
    for (int64_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) {
      try {
        run(context, part, thread);
      } catch (...) {
        next.store(parts, std::memory_order_relaxed);
        std::lock_guard lock(mutex);
        if (!error) {
          error = std::current_exception();
        }
      }
    }
  }
};

/// The helpers of one thread. A job is published under the mutex; a helper enters it by
/// incrementing a counter, also under the mutex. The owner withdraws the job when no part is left,
/// and then knows the number of helpers to wait for.
class Team {
 public:
  Team() { ++threads_of_teams; }  // its owner
  ~Team() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& helper : helpers_) {
      helper.join();
    }
    threads_of_teams -= 1 + static_cast<unsigned>(helpers_.size());
  }

  void run(Job& job) {
    while (static_cast<int64_t>(helpers_.size()) < job.limit - 1) {
      const auto thread = static_cast<int64_t>(helpers_.size()) + 1;
      helpers_.emplace_back([this, thread] { help(thread); });
      ++threads_of_teams;
    }
    {
      std::lock_guard lock(mutex_);
      job_ = &job;
      jobs_.fetch_add(1, std::memory_order_relaxed);
    }
    wake_.notify_all();
    job.work(0);
    {
      std::lock_guard lock(mutex_);
      job_ = nullptr;
    }
    spin([this] { return inside_.load(std::memory_order_relaxed) == 0; });
    std::unique_lock lock(mutex_);
    left_.wait(lock, [this] { return inside_ == 0; });
  }

 private:
  void help(int64_t thread) {
    int64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      lock.unlock();
      spin([&] { return jobs_.load(std::memory_order_relaxed) > seen; });
      lock.lock();
      wake_.wait(lock, [&] { return stopping_ || (job_ && jobs_ > seen); });
      if (stopping_) return;
      seen = jobs_;
      Job& job = *job_;
      if (thread >= job.limit) continue;
      ++inside_;
      lock.unlock();
      job.work(thread);
      lock.lock();
      if (--inside_ == 0) {
        left_.notify_one();
      }
    }
  }

  std::vector<std::thread> helpers_;
  std::mutex mutex_;
  std::condition_variable wake_, left_;
  Job* job_ = nullptr;     ///< guarded by mutex_; null between jobs
  bool stopping_ = false;  ///< guarded by mutex_
  /// Jobs so far, and helpers at work on this one. Changed under mutex_; threads that spin read
  /// them without it.
  std::atomic<int64_t> jobs_ = 0, inside_ = 0;
};

thread_local int size = 1;
thread_local std::unique_ptr<Team> team;

/// A part that asks for threads of its own gets none.
class AloneInside {
 public:
  AloneInside() : own_(size) { size = 1; }
  ~AloneInside() { size = own_; }
  AloneInside(const AloneInside&) = delete;
  AloneInside& operator=(const AloneInside&) = delete;

 private:
  const int own_;
};

}  // namespace

int team_size() { return size; }
void set_team_size(int n) { size = std::max(n, 1); }

void run_parts(int64_t parts, int64_t limit, Part run, void* context) {
  Job job{run, context, parts, std::min({limit, parts, static_cast<int64_t>(size)})};
  const AloneInside alone;
  if (job.limit <= 1) {
    job.work(0);
  } else {
    if (!team) {
      team = std::make_unique<Team>();
    }
    team->run(job);
  }
  if (job.error) {
    std::rethrow_exception(job.error);
  }
}

}  // namespace hocket::kernels
