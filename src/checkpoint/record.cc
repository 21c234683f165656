// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/record.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/adapter.h"
#include "checkpoint/safetensors.h"

namespace hocket::checkpoint {

using nlohmann::json;

namespace {

/// Version that is written; versions 1 to 3 are read.
constexpr int64_t kFormat = 3;
constexpr const char* kFormatKey = "hocket_checkpoint";
constexpr const char* kChecksum = "xxh3";
/// Largest step that is accepted; it guards against damaged records.
constexpr int64_t kMaxStep = 1'000'000'000'000;
// Limit for records of many parts on many ranks (4 GiB); a record of one rank takes some hundred
// kilobytes.
constexpr JsonLimits kLimits = {.max_bytes = int64_t{4} << 30};

/// Returns the XXH3-128 of a JSON object without its checksum, in the canonical form that dump()
/// prints.
std::string checksum_of(json object) {
  object.erase(kChecksum);
  return hash128(object.dump()).hex();
}

/// Prints an object with its checksum.
std::string sealed(json object) {
  // Normalises to the form that is read back: numbers that are not finite become null.
  object = json::parse(object.dump());
  object[kChecksum] = checksum_of(object);
  return object.dump(1) + "\n";
}

void expect_sealed(const JsonView& in) {
  if (in.get_string(kChecksum) != checksum_of(in.json())) {
    fail(in.where(), "has a wrong checksum: it was changed or is damaged");
  }
}

json to_json(const std::vector<Part>& parts) {
  json list = json::array();
  for (const Part& part : parts) {
    json ranges = json::array();
    for (const Range& range : part.ranges) {
      if (range.times == 1) {
        ranges.push_back({range.begin, range.length});
      } else {
        ranges.push_back({range.begin, range.length, range.stride, range.times});
      }
    }
    list.push_back({{"host", part.host},
                    {"rank", part.rank},
                    {"ranges", std::move(ranges)},
                    {kChecksum, part.hash}});
  }
  return list;
}

/// Throws Error unless the range lies within a file of `bytes`.
Range parse_range(const JsonView& in, int64_t bytes) {
  const std::vector<int64_t> numbers = in.as_ints();
  if (numbers.size() != 2 && numbers.size() != 4) {
    in.fail("is not a range; expected [begin, length] or [begin, length, stride, times]");
  }
  Range range = {numbers[0], numbers[1], 0, 1};
  if (numbers.size() == 4) {
    range.stride = numbers[2];
    range.times = numbers[3];
  }
  // Bounds are checked by division, so that nothing overflows.
  const bool good = range.begin >= 0 && range.length > 0 && range.times > 0 &&
                    range.begin < bytes && range.length <= bytes - range.begin &&
                    (range.times == 1 ||
                     (range.stride >= range.length &&
                      range.times - 1 <= (bytes - range.begin - range.length) / range.stride));
  if (!good) {
    in.fail(fmt::format("is {}; expected bytes of a file of {}", in.json().dump(), bytes));
  }
  return range;
}

std::vector<Part> parts_of_file(const JsonView& in, int64_t bytes, size_t hosts) {
  std::vector<Part> parts;
  if (!in.is_array()) {
    in.fail("is not a list of parts");
  }
  for (size_t i = 0; i < in.size(); ++i) {
    const JsonView view = in.at(i);
    Part part;
    const int64_t host = view.get_int("host"), rank = view.get_int("rank");
    if (host < 0 || static_cast<size_t>(host) >= hosts) {
      view.at("host").fail(fmt::format("is {}; expected one of {}", host, hosts));
    }
    if (rank < 0 || rank > std::numeric_limits<int32_t>::max()) {
      view.at("rank").fail(fmt::format("is {}", rank));
    }
    part.host = static_cast<int32_t>(host);
    part.rank = static_cast<int32_t>(rank);
    part.hash = view.get_string(kChecksum);
    const JsonView ranges = view.at("ranges");
    if (!ranges.is_array()) {
      ranges.fail("is not a list");
    }
    for (size_t k = 0; k < ranges.size(); ++k) {
      part.ranges.push_back(parse_range(ranges.at(k), bytes));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

/// Parses the state. A loss that is null was not finite and becomes NaN; `data` belongs to the
/// trainer and is passed through as text.
RunState parse_state(const JsonView& in) {
  RunState state;
  state.step = in.get_int(kStepKey);
  if (state.step < 0 || state.step > kMaxStep) {
    in.at(kStepKey).fail(fmt::format("is {}; expected 0 to {}", state.step, kMaxStep));
  }
  const JsonView seed = in.at("seed");
  if (!seed.json().is_number_unsigned()) {
    seed.fail("is not a whole number from 0");
  }
  state.seed = seed.json().get<uint64_t>();
  state.config = in.get_string("config");
  if (in.has("data")) {
    state.data = in.at("data").json().dump();
  }
  const JsonView losses = in.at("losses");
  if (!losses.is_array()) {
    losses.fail("is not a list; expected [[step, loss], ...]");
  }
  for (size_t i = 0; i < losses.size(); ++i) {
    const JsonView pair = losses.at(i);
    const bool nan = pair.at(1).is_null();
    state.losses.emplace_back(pair.at(0).as_int(), nan ? std::numeric_limits<double>::quiet_NaN()
                                                       : pair.at(1).as_double());
  }
  return state;
}

std::vector<Host> parse_hosts(const JsonView& in) {
  std::vector<Host> hosts;
  if (!in.is_array() || in.size() < 2) {
    in.fail("is not a list of several hosts");
  }
  for (size_t i = 0; i < in.size(); ++i) {
    Host& host = hosts.emplace_back();
    host.name = in.at(i).get_string("name");
    for (const int64_t rank : in.at(i).at("ranks").as_ints()) {
      host.ranks.push_back(static_cast<int32_t>(rank));
    }
  }
  return hosts;
}

/// Parses one entry of the file list, in the given version of the format.
FileRecord parse_file(const JsonView& files, const std::string& name, int64_t format,
                      size_t hosts) {
  FileRecord file;
  if (format == 1) {
    file.bytes = files.get_int(name);
    return file;
  }
  const JsonView in = files.at(name);
  file.bytes = in.get_int("bytes");
  if (!in.has("parts")) {
    file.hash = in.get_string(kChecksum);
    return file;
  }
  file.parts = parts_of_file(in.at("parts"), file.bytes, std::max<size_t>(hosts, 1));
  int64_t bytes = 0;
  for (const Part& part : file.parts) {
    bytes += part.bytes();
  }
  if (hosts == 0 && bytes != file.bytes) {
    in.at("parts").fail(fmt::format("have {} bytes together; expected {}", bytes, file.bytes));
  }
  return file;
}

}  // namespace

int64_t Part::bytes() const {
  int64_t sum = 0;
  for (const Range& range : ranges) {
    sum += range.bytes();
  }
  return sum;
}

std::string record_json(const RunState& state, graph::DType dtype, const FileRecords& files,
                        const std::vector<Host>& hosts) {
  json losses = json::array();
  // JSON has no NaN, so null stands for it. Finite doubles are printed with enough digits to be
  // exact.
  for (const auto& [step, loss] : state.losses) {
    losses.push_back({step, loss});
  }
  json list = json::object();
  for (const auto& [name, file] : files) {
    list[name] = {{"bytes", file.bytes}};
    if (file.parts.empty()) {
      list[name][kChecksum] = file.hash;
    } else {
      list[name]["parts"] = to_json(file.parts);
    }
  }
  json object = {
      {kFormatKey, kFormat},
      {kStepKey, state.step},
      {"seed", state.seed},
      {"dtype", graph::to_string(dtype)},
      {"config", state.config},
      {"data", state.data.empty() ? json(nullptr) : parse_json(state.data, "run.json: data")},
      {"losses", losses},
      {"files", std::move(list)}};
  for (const Host& host : hosts) {
    object["hosts"].push_back({{"name", host.name}, {"ranks", host.ranks}});
  }
  return sealed(std::move(object));
}

RunRecord read_record(const std::string& path) {
  const json object = read_json(path, kLimits);
  const JsonView in(object, path);
  const int64_t format = in.get_int(kFormatKey);
  if (format < 1 || format > kFormat) {
    in.at(kFormatKey)
        .fail(fmt::format("is {}; expected 1 to {}: written by another version", format, kFormat));
  }
  RunRecord record;
  record.has_checksums = format > 1;
  if (record.has_checksums) {
    expect_sealed(in);
    record.hash = in.get_string(kChecksum);
  }
  record.state = parse_state(in);
  record.dtype = graph::parse_dtype(in.get_string("dtype"));
  if (format > 2 && in.has("hosts")) {
    record.hosts = parse_hosts(in.at("hosts"));
  }
  const JsonView files = in.at("files");
  for (const std::string& name : files.keys()) {
    if (name.empty() || name.find('/') != name.npos) {
      files.fail(fmt::format("names {}; expected files of the folder", quote(name)));
    }
    record.files[name] = parse_file(files, name, format, record.hosts.size());
  }
  const bool whole = record.hosts.empty();
  const char* const adapter = whole ? kAdapterFile : kAdapterPartFile;
  const char* const weights = record.files.contains(adapter) ? adapter
                              : whole                        ? kModelFile
                                                             : kModelPartFile;
  for (const char* name : {kConfigFile, weights}) {
    if (!record.files.contains(name)) {
      files.fail(fmt::format("lacks {}", name));
    }
  }
  return record;
}

std::string host_json(int32_t host, const std::string& record_hash) {
  return sealed({{kFormatKey, kFormat}, {"host", host}, {kRunFile, record_hash}});
}

int32_t read_host(const std::string& path, const RunRecord& record) {
  const json object = read_json(path);
  const JsonView in(object, path);
  expect_sealed(in);
  if (in.get_string(kRunFile) != record.hash) {
    fail(path, "belongs to another {} than the one beside it", kRunFile);
  }
  const int64_t host = in.get_int("host");
  if (host < 0 || static_cast<size_t>(host) >= record.hosts.size()) {
    in.at("host").fail(fmt::format("is {}; expected one of {}", host, record.hosts.size()));
  }
  return static_cast<int32_t>(host);
}

std::string parts_json(const PartsByFile& parts) {
  json object = json::object();
  for (const auto& [file, list] : parts) {
    object[file] = to_json(list);
  }
  return object.dump();
}

PartsByFile parse_parts(const std::string& text) {
  constexpr int64_t kAnyBytes = int64_t{1} << 62;
  constexpr size_t kAnyHost = size_t{1} << 31;
  const json object = parse_json(text, "parts of a rank", kLimits);
  const JsonView in(object, "parts of a rank");
  PartsByFile parts;
  for (const std::string& file : in.keys()) {
    parts[file] = parts_of_file(in.at(file), kAnyBytes, kAnyHost);
  }
  return parts;
}

}  // namespace hocket::checkpoint
