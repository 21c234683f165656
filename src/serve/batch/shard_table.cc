// SPDX-License-Identifier: Apache-2.0
#include "serve/batch/shard_table.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace hocket::serve {

namespace {

/// Results that a rate is taken over. Shards of a worker overlap, so one says little.
constexpr size_t kRateResults = 4;
/// A shard of rows that a worker was lost with is so many times smaller than they, to find the row
/// that is the reason.
constexpr int64_t kSuspectCut = 8;
/// A single row that so many workers were lost with is leased alone.
constexpr int kIsolatedFrom = 2;
/// A copy is made only if it is expected to be so many times faster than the rest of the original.
constexpr double kCopyMargin = 1.5;

}  // namespace

ShardTable::ShardTable(int64_t rows, const ShardOptions& options) : rows_(rows), options_(options) {
  if (rows > 0) {
    todo_[0] = {rows, 0};
  }
}

int64_t ShardTable::todo() const {
  int64_t rows = 0;
  for (const auto& [first, todo] : todo_) {
    rows += todo.end - first;
  }
  return rows;
}

double ShardTable::rate(int64_t worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? 0 : found->second.rate;
}

// ---- open --------------------------------------------------------------------------------------

template <class Taken>
void ShardTable::remove_todo(RowRange range, const Taken& taken) {
  const int64_t end = range.first + range.count;
  auto at = todo_.upper_bound(range.first);
  if (at != todo_.begin()) {
    --at;
  }
  while (at != todo_.end() && at->first < end) {
    const auto [first, todo] = *at;
    if (todo.end <= range.first) {
      ++at;
      continue;
    }
    at = todo_.erase(at);
    const int64_t from = std::max(first, range.first), to = std::min(todo.end, end);
    if (first < from) {
      todo_[first] = {from, todo.losses};
    }
    if (to < todo.end) {
      at = todo_.emplace(to, Todo{todo.end, todo.losses}).first;
    }
    taken(RowRange{from, to - from}, todo.losses);
  }
}

void ShardTable::add_todo(RowRange range, int losses) {
  finished_.missing(range.first, range.count, [&](int64_t first, int64_t count) {
    if (count == 1 && losses >= options_.max_losses) {
      given_up_.push_back(first);
      return;
    }
    // Joins a neighbour with the same past.
    int64_t end = first + count;
    auto next = todo_.lower_bound(first);
    if (next != todo_.end() && next->first == end && next->second.losses == losses) {
      end = next->second.end;
      next = todo_.erase(next);
    }
    if (next != todo_.begin() && std::prev(next)->second.end == first &&
        std::prev(next)->second.losses == losses) {
      std::prev(next)->second.end = end;
    } else {
      todo_[first] = {end, losses};
    }
  });
}

void ShardTable::restore(RowRange range) {
  HOCKET_CHECK(range.first >= 0 && range.count > 0 && range.first + range.count <= rows_,
               "rows {} + {} of {}", range.first, range.count, rows_);
  commit(range);
}

// ---- workers -----------------------------------------------------------------------------------

int64_t ShardTable::add_worker(int64_t slots, double now) {
  Worker worker;
  worker.slots = std::max<int64_t>(1, slots);
  worker.last_progress = now;
  workers_[next_worker_] = std::move(worker);
  return next_worker_++;
}

/// Rows that another lease has, too, do not return.
void ShardTable::release(const Lease& lease, int losses) {
  Intervals others;
  for (const auto& [number, worker] : workers_) {
    for (const Lease& other : worker.leases) {
      others.add(other.range.first, other.range.count);
    }
  }
  others.missing(lease.range.first, lease.range.count, [&](int64_t first, int64_t count) {
    add_todo({first, count}, losses);
  });
}

void ShardTable::remove_worker(int64_t worker, bool lost) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  std::vector<Lease> leases = std::move(found->second.leases);
  workers_.erase(found);
  const bool is_alone = leases.size() == 1 && leases.front().range.count == 1;
  for (const Lease& lease : leases) {
    const int most = is_alone ? options_.max_losses : options_.max_losses - 1;
    release(lease, lost ? std::max(lease.losses, std::min(lease.losses + 1, most)) : lease.losses);
  }
}

void ShardTable::adopt(int64_t worker, RowRange range, double now) {
  Worker& owner = workers_.at(worker);
  const int64_t first = std::max<int64_t>(0, range.first);
  range = {first, std::min(rows_, range.first + range.count) - first};
  remove_todo(range, [&](RowRange taken, int losses) {
    give(&owner, {taken, losses, now, false});
  });
}

std::vector<int64_t> ShardTable::expire(double now) {
  std::vector<int64_t> expired;
  for (const auto& [number, worker] : workers_) {
    if (!worker.leases.empty() && now - worker.last_progress > options_.lease_timeout_s) {
      expired.push_back(number);
    }
  }
  for (const int64_t worker : expired) {
    remove_worker(worker, true);
  }
  return expired;
}

std::vector<int64_t> ShardTable::take_given_up() {
  std::vector<int64_t> rows;
  rows.swap(given_up_);
  return rows;
}

void ShardTable::progress(int64_t worker, int64_t finished, double now) {
  Worker& owner = workers_.at(worker);
  if (finished != owner.finished) {
    owner.finished = finished;
    owner.last_progress = now;
  }
}

// ---- leases ------------------------------------------------------------------------------------

int64_t ShardTable::shard_rows(const Worker& worker) const {
  double rows =
      worker.rate > 0 ? worker.rate * options_.target_s : static_cast<double>(worker.slots);
  double sum = 0;
  int64_t known = 0;
  for (const auto& [number, other] : workers_) {
    sum += other.rate;
    known += other.rate > 0 ? 1 : 0;
  }
  // A worker whose rate is not known counts like the average of the others.
  const double mean = known > 0 ? sum / static_cast<double>(known) : 1;
  const double all = sum + mean * static_cast<double>(std::ssize(workers_) - known);
  const double share = (worker.rate > 0 ? worker.rate : mean) / all;
  rows = std::min(rows, static_cast<double>(todo()) * share / 2);
  return std::clamp<int64_t>(static_cast<int64_t>(std::llround(rows)), 1, options_.max_rows);
}

std::optional<RowRange> ShardTable::lease(int64_t worker, double now) {
  Worker& owner = workers_.at(worker);
  for (const Lease& lease : owner.leases) {
    if (is_isolated(lease.range.count, lease.losses)) return std::nullopt;
  }
  for (const bool takes_suspects : {false, true}) {
    for (const auto& [first, todo] : todo_) {
      if ((todo.losses > 0) != takes_suspects) continue;
      const int64_t rows = todo.end - first;
      int64_t count = std::min(shard_rows(owner), rows);
      if (todo.losses > 0) {
        count = std::min(count, std::max<int64_t>(1, rows / kSuspectCut));
      }
      if (is_isolated(count, todo.losses) && !owner.leases.empty()) continue;
      const Lease lease{{first, count}, todo.losses, now, false};
      remove_todo(lease.range, [](RowRange, int) {});
      give(&owner, lease);
      return lease.range;
    }
  }
  return todo_.empty() ? copy_of_oldest(worker, now) : std::nullopt;
}

/// Returns whether a worker is to have nothing beside such a shard: if it is lost, the row was the
/// reason.
bool ShardTable::is_isolated(int64_t count, int losses) const {
  return count == 1 && losses >= std::min(kIsolatedFrom, options_.max_losses - 1);
}

void ShardTable::give(Worker* worker, const Lease& lease) {
  if (worker->leases.empty()) {
    worker->last_progress = lease.begun;
    // Time without work is no part of a rate.
    worker->results = {{lease.begun, 0}};
  }
  worker->leases.push_back(lease);
}

/// Returns whether a worker without other work is likely to finish another one's shard before it.
bool ShardTable::is_late(const Lease& lease, const Worker& owner, const Worker& idle,
                         double now) const {
  const double age = now - lease.begun;
  if (owner.rate <= 0 || idle.rate <= 0) return age > options_.target_s;
  const auto rows = static_cast<double>(lease.range.count);
  const double left = rows / owner.rate - age;
  if (left <= 0) return age > std::max(options_.target_s, 2 * rows / owner.rate);
  return kCopyMargin * rows / idle.rate < left;
}

std::optional<RowRange> ShardTable::copy_of_oldest(int64_t worker, double now) {
  const Lease* oldest = nullptr;
  for (const auto& [number, other] : workers_) {
    for (const Lease& lease : other.leases) {
      if (number == worker || (oldest && lease.begun >= oldest->begun)) continue;
      if (lease.losses > 0 || !is_late(lease, other, workers_.at(worker), now)) continue;
      bool is_copied = false;
      for (const auto& [third, holder] : workers_) {
        for (const Lease& held : holder.leases) {
          is_copied |= &held != &lease &&
                       held.range.first < lease.range.first + lease.range.count &&
                       lease.range.first < held.range.first + held.range.count;
        }
      }
      if (!is_copied) {
        oldest = &lease;
      }
    }
  }
  if (!oldest) return std::nullopt;
  const Lease copy{oldest->range, oldest->losses, now, true};
  give(&workers_.at(worker), copy);
  return copy.range;
}

void ShardTable::shrink(int64_t worker, RowRange range, int64_t count) {
  for (Lease& lease : workers_.at(worker).leases) {
    if (lease.range == range) {
      const Lease rest{{range.first + count, range.count - count}, lease.losses, 0, false};
      lease.range.count = count;
      release(rest, rest.losses);
      return;
    }
  }
}

void ShardTable::note_result(Worker* worker, int64_t rows, double now) {
  std::vector<Result>& results = worker->results;
  results.push_back({now, rows});
  if (results.size() > kRateResults + 1) {
    results.erase(results.begin());
  }
  int64_t sum = 0;
  for (size_t i = 1; i < results.size(); ++i) {
    sum += results[i].rows;
  }
  const double seconds = now - results.front().time;
  if (seconds > 0) {
    worker->rate = static_cast<double>(sum) / seconds;
  }
}

std::vector<RowRange> ShardTable::take_result(int64_t worker, RowRange range, double now) {
  const auto found = workers_.find(worker);
  if (found != workers_.end()) {
    Worker& owner = found->second;
    const auto lease = std::find_if(owner.leases.begin(), owner.leases.end(),
                                    [&](const Lease& held) { return held.range == range; });
    if (lease != owner.leases.end()) {
      note_result(&owner, range.count, now);
      owner.leases.erase(lease);
    }
    owner.last_progress = now;
  }
  std::vector<RowRange> fresh;
  finished_.missing(range.first, range.count, [&](int64_t first, int64_t count) {
    fresh.push_back({first, count});
  });
  return fresh;
}

void ShardTable::commit(RowRange range) {
  finished_.add(range.first, range.count, [&](int64_t, int64_t count) { done_ += count; });
  remove_todo(range, [](RowRange, int) {});
}

}  // namespace hocket::serve
