// SPDX-License-Identifier: Apache-2.0
// The programs of one model on one set of ranks, and its parameters: compiled when first asked for,
// prepared when first run, and kept. All share the threads and the memory of their ranks, so that
// many take no more than the largest does; and so do those of several models on the same ranks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "engine/session.h"
#include "run/compile.h"

namespace hocket::engine {

class Programs {
 public:
  /// Called with a program that was lowered here, before it runs; throws to refuse it.
  using Inspect = std::function<void(const Compiled&)>;
  /// Requires: run and ranks outlive it, and the run does not change.
  Programs(const Run& run, runtime::LocalRanks& ranks, Inspect inspect = nullptr)
      : run_(run), store_(ranks), inspect_(std::move(inspect)) {}

  /// Returns the program of this spec, by its key; allocates nothing on the ranks.
  const Compiled& compiled(const ProgramSpec& spec);
  /// Returns the training program.
  const Compiled& compiled() { return compiled(training(run_)); }
  /// Returns its session. Throws Error if its parameter layouts differ from earlier programs'.
  Session& session(const ProgramSpec& spec);
  Session& session() { return session(training(run_)); }
  /// Replaces the program of this spec by one that was not lowered here.
  void replace(const ProgramSpec& spec, Compiled given);
  /// Gives back all memory of the ranks but the persistent tensors, and their threads.
  void end_sessions();

  runtime::LocalRanks& ranks() { return store_.ranks(); }
  /// Returns the store of the sessions.
  const runtime::Store& store() const { return store_; }
  size_t num_compiled() const { return entries_.size(); }
  /// Returns what programs that are lowered here are called with; empty: nothing.
  const Inspect& inspect() const { return inspect_; }

 private:
  struct Entry {
    std::shared_ptr<const Compiled> compiled;
    std::unique_ptr<Session> session;  ///< null until it is asked for
  };
  Entry& entry(const ProgramSpec& spec);

  friend class ParameterReader;

  const Run& run_;
  const runtime::Store store_;
  const Inspect inspect_;
  std::map<std::string, Entry> entries_;  ///< by the keys of their specs
};

/// A program that reads the parameters which another one trains. It runs in the store of that one
/// if it holds them alike. Else it has a store of its own on the same ranks, into which they are
/// copied.
class ParameterReader {
 public:
  /// `trained`: the program of `programs`, which outlives the reader, that the parameters are held
  /// for; null: for the one that reads them.
  ParameterReader(Programs& programs, const ProgramSpec& reads, const Compiled* trained);
  /// Returns a session that is ready to run; its parameters are those of the last update().
  Session& session() { return own_ ? *own_ : *shared_; }
  /// Parameters as they are now. With ranks as processes all call it.
  void update();

 private:
  Programs& programs_;
  const Compiled* const trained_;
  Session* shared_ = nullptr;
  std::unique_ptr<Session> own_;  ///< on a store of its own
};

}  // namespace hocket::engine
