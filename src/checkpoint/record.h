// SPDX-License-Identifier: Apache-2.0
// run.json of a checkpoint: the state of a run besides its tensors, and the checksums of files and
// their parts. Format 3. Format 2 had one checksum per file, format 1 none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/dtype.h"

namespace hocket::checkpoint {

inline constexpr const char* kRunFile = "run.json";
/// Identifies the host of a folder, beside run.json, where a checkpoint is spread over several
/// hosts.
inline constexpr const char* kHostFile = "host.json";
/// Key of the step in run.json and in the metadata of tensor files.
inline constexpr const char* kStepKey = "step";

/// State of a run besides its tensors.
struct RunState {
  int64_t step = 0;  ///< steps done
  uint64_t seed = 0;
  std::string config;  ///< the resolved run.yaml
  std::string data;    ///< JSON text that the trainer writes and reads; empty counts as null
  std::vector<std::pair<int64_t, double>> losses;  ///< (step, loss), bit-exact
};

/// Bytes of a file: `times` runs of `length` bytes, `stride` bytes apart.
struct Range {
  int64_t begin = 0, length = 0, stride = 0, times = 1;
  int64_t bytes() const { return length * times; }
  int64_t end() const { return begin + stride * (times - 1) + length; }
};

/// Bytes that one rank wrote into a tensor file.
struct Part {
  int32_t host = 0;  ///< index in the record's list of hosts
  int32_t rank = 0;
  std::vector<Range> ranges;  ///< in the order in which they were hashed
  std::string hash;           ///< hexadecimal XXH3-128
  int64_t bytes() const;
};

/// File of the folder, verified as a whole or part by part.
struct FileRecord {
  int64_t bytes = 0;
  std::string hash;         ///< of the whole file; empty in format 1, and for files with parts
  std::vector<Part> parts;  ///< of tensor files
};
using FileRecords = std::map<std::string, FileRecord>;

/// Group of processes that see one file system.
struct Host {
  std::string name;
  std::vector<int32_t> ranks;  ///< ascending
};

/// Parsed run.json.
struct RunRecord {
  RunState state;
  graph::DType dtype = graph::DType::f32;  ///< of the parameters
  FileRecords files;
  std::vector<Host>
      hosts;  ///< one per folder of the checkpoint; empty: this folder is the whole checkpoint
  bool has_checksums = true;
  std::string hash;  ///< of the record itself; empty in format 1
};

/// Prints run.json.
std::string record_json(const RunState& state, graph::DType dtype, const FileRecords& files,
                        const std::vector<Host>& hosts);
/// Parses run.json. Throws Error if it is not readable, of another format, or changed since it was
/// written. Throws it also for parts outside of their file or, on a single host, that do not cover
/// it.
RunRecord read_record(const std::string& path);

/// Prints host.json, which says that the folder is that of `host` in the checkpoint with this
/// run.json.
std::string host_json(int32_t host, const std::string& record_hash);
/// Parses host.json and returns the host's index. Throws Error if it is not readable, changed, of
/// another checkpoint, or has an index out of range.
int32_t read_host(const std::string& path, const RunRecord& record);

/// Parts by file, in the form that processes exchange.
using PartsByFile = std::map<std::string, std::vector<Part>>;
std::string parts_json(const PartsByFile& parts);
PartsByFile parse_parts(const std::string& text);

}  // namespace hocket::checkpoint
