// SPDX-License-Identifier: Apache-2.0
// Importers of `hocket whatif`: each turns the files of one schema into a measured run. They share
// the matching of collectives (match_collectives.h), clocks (clocks.h) and transfer times
// (transfers.h). A new importer is a file and a row of importers.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost/cluster.h"
#include "whatif/measured_run.h"

namespace hocket::whatif {

struct Importer {
  const char* name;  ///< as --format takes it
  const char* what;  ///< for the help
  bool several;      ///< takes a file per rank
  bool priced;       ///< takes a cluster, for ops without a duration
  /// Returns whether the beginning of a file (64 KiB, unpacked) is of the format.
  bool (*knows)(const std::string& beginning);
  /// Throws Error if nothing in the files can be replayed. `cluster` prices ops, or is null.
  MeasuredRun (*read)(const std::vector<std::string>& paths, const cost::Cluster* cluster);
};
const std::vector<Importer>& importers();

/// Reads `paths` with the importer named `format`, or, if that is empty, with the first one that
/// recognizes the first path. Throws Error if no importer does, `format` is unknown, or several
/// files are given to an importer of one. Also throws if a cluster is given for a format that
/// always has durations.
MeasuredRun read_run(const std::vector<std::string>& paths, const std::string& format = "",
                     const cost::Cluster* cluster = nullptr);

bool is_straggler(const std::string& beginning);
/// Reads Chrome JSON of the straggler data (StragglerAnalysis, OSDI'25): Megatron's ops by type,
/// with step, model chunk, micro-batch and sequence; a process per data-parallel rank, five threads
/// per worker.
MeasuredRun read_straggler(const std::vector<std::string>& paths, const cost::Cluster* cluster);

bool is_hocket(const std::string& beginning);
/// Reads Hocket's own traces (docs/outputs.md), of runs and simulations. Lanes are in-order queues,
/// ids match messages and collectives, and dependencies are those of the trace's program.
MeasuredRun read_hocket(const std::vector<std::string>& paths, const cost::Cluster* cluster);

bool is_kineto(const std::string& beginning);
/// Reads PyTorch profiles (Kineto) of ranks with GPUs: kernels and copies in streams, the host's
/// launches and waits; clocks are set by when collectives end.
MeasuredRun read_kineto(const std::vector<std::string>& paths, const cost::Cluster* cluster);

bool is_chakra(const std::string& beginning);
/// Reads Chakra execution traces (whatif/chakra_nodes.h).
MeasuredRun read_chakra(const std::vector<std::string>& paths, const cost::Cluster* cluster);

}  // namespace hocket::whatif
