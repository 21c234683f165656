// SPDX-License-Identifier: Apache-2.0
// The programs of one run on one set of ranks: compiled when first asked for, prepared when first
// run, and kept. All share the threads and the memory of their ranks, so that many take no more
// than the largest does.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "engine/session.h"
#include "run/compile.h"

namespace hocket::engine {

class Programs {
 public:
  /// Both outlive it; the run does not change meanwhile: with the options it decides a program.
  Programs(const Run& run, runtime::LocalRanks& ranks) : run_(run), ranks_(ranks) {}

  /// The program of these options; nothing is taken of the ranks for it.
  const Compiled& compiled(const CompileOptions& options = {});
  /// It, ready to run. Error: it holds parameters otherwise than the programs before it.
  Session& session(const CompileOptions& options = {});
  /// From now on the program of these options is this one, which was not lowered here.
  void replace(const CompileOptions& options, Compiled given);
  /// Gives back all memory of the ranks but the persistent tensors, and their threads.
  void end_sessions();

  runtime::LocalRanks& ranks() { return ranks_; }
  size_t num_compiled() const { return entries_.size(); }

 private:
  struct Entry {
    std::shared_ptr<const Compiled> compiled;
    std::unique_ptr<Session> session;  ///< null until it is asked for
  };
  Entry& entry(const CompileOptions& options);

  const Run& run_;
  runtime::LocalRanks& ranks_;
  std::map<std::string, Entry> entries_;  ///< by what the options say
};

}  // namespace hocket::engine
