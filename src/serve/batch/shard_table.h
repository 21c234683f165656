// SPDX-License-Identifier: Apache-2.0
// States of a job's rows, and their division among workers, after AntBatchInfer (arXiv 2404.09686):
// a row is open, leased to a worker as a part of a shard, or done. Times are given by the
// caller, so that tests pass their own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/intervals.h"

namespace hocket::serve {

/// Rows [first, first + count).
struct RowRange {
  int64_t first = 0, count = 0;
  bool operator==(const RowRange&) const = default;
};

struct ShardOptions {
  double target_s = 10;          ///< a shard is to take a worker about this long
  int64_t max_rows = 1 << 16;    ///< of a shard
  double lease_timeout_s = 600;  ///< a worker without a finished row for so long loses its shards
  /// Number of lost workers after which a row is given up as the likely reason. The last one was
  /// lost while it had this row alone. At least 2.
  int max_losses = 5;
};

/// Used by one thread.
class ShardTable {
 public:
  ShardTable(int64_t rows, const ShardOptions& options);

  /// Marks rows as done, as the journal has them.
  void restore(RowRange range);

  /// Adds a worker that generates `slots` rows at a time; returns its number.
  int64_t add_worker(int64_t slots, double now);
  /// Removes a worker; its rows are open again. `lost`: it died or fell silent; else it left.
  void remove_worker(int64_t worker, bool lost);
  /// Leases rows that the worker still has of an earlier connection, as far as they are open.
  void adopt(int64_t worker, RowRange range, double now);

  /// Leases the worker its next shard: rows for `target_s` at its recent rate, and near the end of
  /// the job at most half of its share of the rest. Without open rows, leases a copy of a shard
  /// that another worker is expected to finish later; the first result counts. Returns nothing if
  /// there is nothing to do.
  std::optional<RowRange> lease(int64_t worker, double now);
  /// Reduces a lease to its first rows; the others are open again.
  void shrink(int64_t worker, RowRange range, int64_t count);
  /// Notes that a worker finishes rows: `finished` counts all since it began.
  void progress(int64_t worker, int64_t finished, double now);
  /// Returns the rows of a result, leased or not, that are not done, and ends the lease. commit()
  /// makes them done.
  std::vector<RowRange> take_result(int64_t worker, RowRange range, double now);
  void commit(RowRange range);
  /// Removes workers after their lease has timed out, opens their rows again, and returns the
  /// workers.
  std::vector<int64_t> expire(double now);
  /// Rows that are given up, each once. Requires: the caller commits an error for them.
  std::vector<int64_t> take_given_up();

  int64_t rows() const { return rows_; }
  int64_t done() const { return done_; }
  int64_t todo() const;
  int64_t doing() const { return rows_ - done_ - todo(); }
  bool is_complete() const { return done_ == rows_; }
  double rate(int64_t worker) const;  ///< rows/s; 0: not known

 private:
  struct Todo {
    int64_t end = 0;
    int losses = 0;  ///< workers that were lost with these rows
  };
  struct Lease {
    RowRange range;
    int losses = 0;
    double begun = 0;
    bool is_copy = false;
  };
  struct Result {
    double time = 0;
    int64_t rows = 0;
  };
  struct Worker {
    int64_t slots = 1;
    double rate = 0;              ///< rows/s over the latest results; 0: not known
    std::vector<Result> results;  ///< the latest, behind the time from which they count
    double last_progress = 0;
    int64_t finished = 0;
    std::vector<Lease> leases;
  };

  int64_t shard_rows(const Worker& worker) const;
  bool is_late(const Lease& lease, const Worker& owner, const Worker& idle, double now) const;
  std::optional<RowRange> copy_of_oldest(int64_t worker, double now);
  static void note_result(Worker* worker, int64_t rows, double now);
  static void give(Worker* worker, const Lease& lease);
  bool is_isolated(int64_t count, int losses) const;
  void release(const Lease& lease, int losses);
  void add_todo(RowRange range, int losses);
  /// Takes rows out of todo_; calls `taken` for those that were there.
  template <class Taken>
  void remove_todo(RowRange range, const Taken& taken);

  const int64_t rows_;
  const ShardOptions options_;
  std::map<int64_t, Todo> todo_;  ///< by first row, disjoint
  Intervals finished_;            ///< done
  int64_t done_ = 0;
  std::map<int64_t, Worker> workers_;
  int64_t next_worker_ = 0;
  std::vector<int64_t> given_up_;
};

}  // namespace hocket::serve
