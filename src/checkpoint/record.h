// SPDX-License-Identifier: Apache-2.0
// run.json of a checkpoint: what a run needs besides tensors, and which bytes of which file have
// which checksum. Format 3. Format 2 had one checksum per file, format 1 none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/dtype.h"

namespace hocket::checkpoint {

inline constexpr const char* kRunFile = "run.json";
/// Beside run.json where a checkpoint lies on several hosts: whose part this folder is.
inline constexpr const char* kHostFile = "host.json";
/// The key of the step in run.json and in the metadata of files of tensors.
inline constexpr const char* kStepKey = "step";

/// run.json: what a run needs besides tensors.
struct RunState {
  int64_t step = 0;  ///< steps done
  uint64_t seed = 0;
  std::string config;  ///< the resolved run.yaml
  std::string data;    ///< JSON text that the trainer writes and reads; empty counts as null
  std::vector<std::pair<int64_t, double>> losses;  ///< (step, loss), bit-exact
};

/// Bytes of a file: `times` runs of `length`, each `stride` behind the one before it.
struct Range {
  int64_t begin = 0, length = 0, stride = 0, times = 1;
  int64_t bytes() const { return length * times; }
  int64_t end() const { return begin + stride * (times - 1) + length; }
};

/// What one rank wrote of a file of tensors.
struct Part {
  int32_t host = 0;  ///< of those that the record lists
  int32_t rank = 0;
  std::vector<Range> ranges;  ///< in the order of the checksum
  std::string hash;           ///< hexadecimal XXH3-128
  int64_t bytes() const;
};

/// A file of the folder, compared as a whole or part by part.
struct FileRecord {
  int64_t bytes = 0;
  std::string hash;         ///< of the whole file; empty in format 1, and where there are parts
  std::vector<Part> parts;  ///< of files of tensors
};
using FileRecords = std::map<std::string, FileRecord>;

/// Processes that see one file system.
struct Host {
  std::string name;
  std::vector<int32_t> ranks;  ///< ascending
};

struct RunRecord {
  RunState state;
  graph::DType dtype = graph::DType::f32;  ///< of the parameters
  FileRecords files;
  std::vector<Host> hosts;  ///< each with a folder of its own; empty: this one is all
  bool has_checksums = true;
  std::string hash;  ///< of the record itself; empty in format 1
};

/// The text of run.json.
std::string record_json(const RunState& state, graph::DType dtype, const FileRecords& files,
                        const std::vector<Host>& hosts);
/// Error: not readable, another format, changed since it was written, parts that are no bytes of
/// their file or, if there is one host, not all of them.
RunRecord read_record(const std::string& path);

/// The text of host.json: this folder is that of `host` in the checkpoint whose run.json has this
/// checksum.
std::string host_json(int32_t host, const std::string& record_hash);
/// Error: not readable, changed, of another checkpoint, a host that it has not.
int32_t read_host(const std::string& path, const RunRecord& record);

/// Parts by file, as one process tells them to the others.
using PartsByFile = std::map<std::string, std::vector<Part>>;
std::string parts_json(const PartsByFile& parts);
PartsByFile parse_parts(const std::string& text);

}  // namespace hocket::checkpoint
