// SPDX-License-Identifier: Apache-2.0
// The importers of `hocket whatif`: each makes a measured run of the files of one schema. They
// share nothing else; a new one is a file and a row of importers.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/whatif/measured_run.h"

namespace hocket::sim::whatif {

struct Importer {
  const char* name;  ///< as --format takes it
  const char* what;  ///< for the help
  bool several;      ///< takes a file per rank
  /// True of the beginning of a file (64 KiB, unpacked).
  bool (*knows)(const std::string& beginning);
  /// Error: nothing in the files can be replayed.
  MeasuredRun (*read)(const std::vector<std::string>& paths);
};
const std::vector<Importer>& importers();

/// Reads `paths` with the importer that is named, or, if `format` is empty, that knows the first
/// one. Error: none does; a format of that name is not there; several files of one that takes one.
MeasuredRun read_run(const std::vector<std::string>& paths, const std::string& format = "");

bool is_straggler(const std::string& beginning);
/// Chrome JSON of the straggler data (StragglerAnalysis, OSDI'25): Megatron's ops by type, with
/// step, model chunk, micro-batch and sequence; a process per data-parallel rank, five threads per
/// worker.
MeasuredRun read_straggler(const std::vector<std::string>& paths);

bool is_hocket(const std::string& beginning);
/// Our own traces (docs/trace.md), of runs and simulations: lanes are in-order queues, messages and
/// collectives are told by their ids, and tasks wait as the trace's program does.
MeasuredRun read_hocket(const std::vector<std::string>& paths);

bool is_kineto(const std::string& beginning);
/// PyTorch profiles (Kineto) of ranks with GPUs: kernels and copies in streams, the host's launches
/// and waits; clocks are set by when collectives end.
MeasuredRun read_kineto(const std::vector<std::string>& paths);

bool is_chakra(const std::string& beginning);
/// Chakra execution traces as JSON, with durations.
MeasuredRun read_chakra(const std::vector<std::string>& paths);

}  // namespace hocket::sim::whatif
