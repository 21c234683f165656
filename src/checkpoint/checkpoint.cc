// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"

namespace hocket::checkpoint {

using nlohmann::json;

namespace {

constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kRunFile = "run.json";
constexpr std::string_view kStep = "step-";
constexpr std::string_view kTemporary = ".hocket-tmp-";
// Format 1 had lengths in place of checksums, and nothing but run.json said the step.
constexpr int64_t kFormat = 2;
constexpr const char* kChecksum = "xxh3";
constexpr const char* kStepKey = "step";
constexpr int64_t kMaxStep = 1'000'000'000'000;

std::string step_name(int64_t step) { return fmt::format("{}{:06}", kStep, step); }

/// The step of a checkpoint's folder name; -1 for other names.
int64_t step_of(std::string_view name) {
  if (!name.starts_with(kStep)) return -1;
  const std::string_view digits = name.substr(kStep.size());
  int64_t step = -1;
  if (digits.empty() || digits[0] < '0' || digits[0] > '9' || !parse_int(digits, &step)) return -1;
  return step;
}

const char* torch_name(graph::DType dtype) {
  switch (dtype) {
    case graph::DType::f32:
      return "float32";
    case graph::DType::f64:
      return "float64";
    case graph::DType::bf16:
      return "bfloat16";
    default:
      break;
  }
  HOCKET_CHECK(false, "parameters of type {}", graph::to_string(dtype));
  return "";
}

/// A file as run.json lists it.
struct FileRecord {
  int64_t bytes = 0;
  std::string hash;  ///< hexadecimal XXH3-128; empty in format 1
};
using FileRecords = std::map<std::string, FileRecord>;

/// What run.json says.
struct RunRecord {
  RunState state;
  FileRecords files;
  bool has_checksums = true;
};

/// XXH3-128 of run.json without the checksum itself, in the one way in which it is printed.
std::string checksum_of(json object) {
  object.erase(kChecksum);
  return hash128(object.dump()).hex();
}

std::string record_json(const RunState& state, graph::DType dtype, const FileRecords& files) {
  json losses = json::array();
  // JSON has no NaN: null stands for it. Finite doubles are written with enough digits.
  for (const auto& [step, loss] : state.losses) {
    losses.push_back({step, loss});
  }
  json list = json::object();
  for (const auto& [name, file] : files) {
    list[name] = {{"bytes", file.bytes}, {kChecksum, file.hash}};
  }
  json object = {
      {"hocket_checkpoint", kFormat},
      {kStepKey, state.step},
      {"seed", state.seed},
      {"dtype", graph::to_string(dtype)},
      {"config", state.config},
      {"data", state.data.empty() ? json(nullptr) : parse_json(state.data, "run.json: data")},
      {"losses", losses},
      {"files", list}};
  // As it reads back: null for what is not finite.
  object = json::parse(object.dump());
  object[kChecksum] = checksum_of(object);
  return object.dump(1) + "\n";
}

/// A loss that was not finite was written as null and is NaN again; `data` is the trainer's own and
/// goes through as text.
RunState parse_state(const JsonView& in) {
  RunState state;
  state.step = in.get_int(kStepKey);
  if (state.step < 0 || state.step > kMaxStep) {
    in.at(kStepKey).fail(fmt::format("is {}; expected 0 to {}", state.step, kMaxStep));
  }
  const json& seed = in.at("seed").json();
  if (!seed.is_number_unsigned()) {
    in.at("seed").fail("is no whole number from 0");
  }
  state.seed = seed.get<uint64_t>();
  state.config = in.get_string("config");
  if (in.has("data")) {
    state.data = in.at("data").json().dump();
  }
  const JsonView losses = in.at("losses");
  if (!losses.is_array()) {
    losses.fail("is no list; expected [[step, loss], ...]");
  }
  for (size_t i = 0; i < losses.size(); ++i) {
    const JsonView pair = losses.at(i);
    const bool nan = pair.at(1).is_null();
    state.losses.emplace_back(pair.at(0).as_int(), nan ? std::numeric_limits<double>::quiet_NaN()
                                                       : pair.at(1).as_double());
  }
  return state;
}

/// Error: not readable, another format, changed since it was written.
RunRecord read_record(const std::string& path) {
  const json object = read_json(path);
  const JsonView in(object, path);
  const int64_t format = in.get_int("hocket_checkpoint");
  if (format < 1 || format > kFormat) {
    in.at("hocket_checkpoint")
        .fail(fmt::format("is {}; expected 1 to {}: written by another version", format, kFormat));
  }
  RunRecord record;
  record.has_checksums = format > 1;
  if (record.has_checksums && in.get_string(kChecksum) != checksum_of(object)) {
    fail(path, "does not have its checksum: it was changed or is damaged");
  }
  record.state = parse_state(in);
  const JsonView files = in.at("files");
  for (const std::string& name : files.keys()) {
    if (name.empty() || name.find('/') != name.npos) {
      files.fail(fmt::format("names {}; expected files of the folder", quote(name)));
    }
    FileRecord& file = record.files[name];
    file.bytes = record.has_checksums ? files.at(name).get_int("bytes") : files.get_int(name);
    if (record.has_checksums) {
      file.hash = files.at(name).get_string(kChecksum);
    }
  }
  for (const char* name : {kConfigFile, kModelFile}) {
    if (!record.files.contains(name)) {
      files.fail(fmt::format("lacks {}", name));
    }
  }
  return record;
}

/// Puts a finished folder in place of another of the same name, in one step where the system can.
void replace_folder(const std::string& from, const std::string& to) {
  if (file_exists(to)) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      sync_dir(parent_path(to));
      remove_tree(from);
      return;
    }
    remove_tree(to);
  }
  rename_durable(from, to);
}

void write_synced(const std::string& path, const std::function<void(FileWriter&)>& write,
                  FileRecords& files) {
  Hasher hasher;
  FileWriter out(path, FileWriter::Mode::create);
  out.hash_into(&hasher);
  write(out);
  out.sync();
  out.close();
  files[file_name(path)] = {out.written(), hasher.finish().hex()};
}

bool is_alive(int64_t pid) {
  return pid > 0 && pid <= std::numeric_limits<pid_t>::max() && pid != ::getpid() &&
         (::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM);
}

bool holds_tensors(const std::string& name) { return name == kModelFile || name == kOptimizerFile; }

/// The step that a safetensors file of a checkpoint says it is of.
void check_step_of(const std::string& folder, const std::string& name, int64_t step) {
  const SafetensorsFile file(join_path(folder, name));
  const auto said = file.metadata().find(kStepKey);
  if (said == file.metadata().end()) fail(folder, "{} says no step", name);
  if (said->second != fmt::format("{}", step)) {
    fail(folder, "{} is of step {}; run.json is of step {}", name, quote(said->second), step);
  }
}

/// Reads and compares, cheapest first, and returns what run.json says. Error: the first defect.
RunRecord verified_record(const std::string& folder, Verify verify) {
  const std::string run = join_path(folder, kRunFile);
  if (!file_exists(run)) fail(folder, "no {}", kRunFile);
  RunRecord record = read_record(run);
  for (const auto& [name, file] : record.files) {
    const std::string path = join_path(folder, name);
    if (!file_exists(path)) fail(folder, "{} is missing", name);
    if (const int64_t size = file_size(path); size != file.bytes) {
      fail(folder, "{} has {} bytes of {}", name, size, file.bytes);
    }
  }
  // A checkpoint may be copied to any other name.
  const int64_t named = step_of(file_name(folder));
  if (named >= 0 && named != record.state.step) {
    fail(folder, "{} is of step {}; the folder is named after step {}", kRunFile, record.state.step,
         named);
  }
  if (!record.has_checksums) {
    if (verify != Verify::lengths) {
      log_warning("{}: saved without checksums; only lengths were compared", folder);
    }
    return record;
  }
  for (const auto& [name, file] : record.files) {
    if (holds_tensors(name)) {
      check_step_of(folder, name, record.state.step);
    }
  }
  for (const auto& [name, file] : record.files) {
    const bool read =
        verify == Verify::all || (verify == Verify::weights && name != kOptimizerFile);
    if (read && hash_file(join_path(folder, name)).hex() != file.hash) {
      fail(folder, "{} does not have its checksum: it was changed or is damaged", name);
    }
  }
  return record;
}

/// Why a folder is no intact checkpoint, without the folder's name; empty if it is one.
std::string defect(const std::string& folder, Verify verify) {
  try {
    verified_record(folder, verify);
  } catch (const Error& error) {
    return std::string(error.where() == folder ? error.text() : error.what());
  }
  return "";
}

}  // namespace

std::string save_checkpoint(const std::string& run_folder, const CheckpointContent& content) {
  HOCKET_CHECK(content.config != nullptr && !content.params.empty(), "a checkpoint needs a model");
  const graph::DType dtype = content.params[0].type.dtype;
  make_dirs(run_folder);
  clean_checkpoints(run_folder);
  const std::string name = step_name(content.state.step);
  const std::string final_path = join_path(run_folder, name);
  const std::string folder = fmt::format("{}{}{}", final_path, kTemporary, ::getpid());
  try {
    make_dirs(folder);
    const models::ModelConfig config =
        models::with_end_of_text(*content.config, content.end_of_text);
    FileRecords files;
    const auto put = [&](const std::string& file, const std::string& bytes) {
      write_synced(
          join_path(folder, file), [&](FileWriter& out) { out.write(bytes); }, files);
    };
    const auto put_tensors = [&](const char* file, const std::vector<NamedTensor>& tensors) {
      const std::map<std::string, std::string> metadata = {
          {kStepKey, fmt::format("{}", content.state.step)}};
      write_synced(
          join_path(folder, file),
          [&](FileWriter& out) { write_safetensors(out, tensors, metadata); }, files);
    };
    for (const auto& [file, bytes] : content.files) {
      put(file, bytes);
    }
    put(kConfigFile, models::config_json(config, torch_name(dtype)));
    put("generation_config.json", models::generation_config_json(config));
    put_tensors(kModelFile, to_stored(*content.config, content.params));
    if (!content.optimizer.empty()) {
      put_tensors(kOptimizerFile, content.optimizer);
    }
    put(kRunFile, record_json(content.state, dtype, files));
    sync_dir(folder);
    replace_folder(folder, final_path);
  } catch (...) {
    // The first error is the one to report, also if the disk refuses this too.
    try {
      remove_tree(folder);
    } catch (const Error&) {
    }
    throw;
  }
  return final_path;
}

std::vector<std::pair<int64_t, std::string>> list_checkpoints(const std::string& run_folder) {
  std::vector<std::pair<int64_t, std::string>> found;
  if (!is_directory(run_folder)) return found;
  for (const std::string& name : list_dir(run_folder)) {
    const std::string path = join_path(run_folder, name);
    if (const int64_t step = step_of(name); step >= 0 && is_directory(path)) {
      found.emplace_back(step, path);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

void verify_checkpoint(const std::string& folder, Verify verify) {
  const std::string why = defect(folder, verify);
  if (!why.empty()) fail(folder, "not an intact checkpoint: {}", why);
}

std::optional<std::string> latest_checkpoint(const std::string& run_folder, Verify verify) {
  auto found = list_checkpoints(run_folder);
  std::reverse(found.begin(), found.end());
  std::vector<std::string> damaged;
  for (const auto& [step, path] : found) {
    const std::string why = defect(path, verify);
    if (!why.empty()) {
      damaged.push_back(fmt::format("{} ({})", file_name(path), why));
      continue;
    }
    if (!damaged.empty()) {
      log_warning("{}: damaged: {}; {} is intact and taken instead", run_folder,
                  join(damaged, ", "), file_name(path));
    }
    return path;
  }
  if (!damaged.empty()) {
    fail(run_folder, "no intact checkpoint: {}; restore one, or remove them to start over",
         join(damaged, ", "));
  }
  return {};
}

void clean_checkpoints(const std::string& run_folder) {
  if (!is_directory(run_folder)) return;
  for (const std::string& name : list_dir(run_folder)) {
    const std::string path = join_path(run_folder, name);
    if (step_of(name) >= 0 && !is_directory(path)) {
      fail(path, "is {}; expected a checkpoint's folder; remove it",
           file_exists(path) ? "a file" : "a link to nothing");
    }
    const size_t mark = name.find(kTemporary);
    if (mark == name.npos || step_of(std::string_view(name).substr(0, mark)) < 0) continue;
    int64_t pid = 0;
    if (!parse_int(std::string_view(name).substr(mark + kTemporary.size()), &pid)) continue;
    if (!is_alive(pid)) {
      remove_tree(path);
    }
  }
}

void prune_checkpoints(const std::string& run_folder, int64_t last, int64_t keep) {
  if (keep <= 0) return;
  auto found = list_checkpoints(run_folder);
  std::erase_if(found, [last](const auto& c) {
    return c.first > last || !defect(c.second, Verify::lengths).empty();
  });
  for (size_t i = 0; i + static_cast<size_t>(keep) < found.size(); ++i) {
    remove_tree(found[i].second);
  }
}

namespace {

// Called before any file is opened, so that a damaged folder gets one clear message.
const std::string& checked(const std::string& folder, Verify verify) {
  verify_checkpoint(folder, verify);
  return folder;
}

}  // namespace

Checkpoint::Checkpoint(const std::string& folder, Verify verify)
    : folder_(checked(folder, verify)),
      config_(models::read_config(folder)),
      state_(read_record(join_path(folder, kRunFile)).state),
      weights_(join_path(folder, kModelFile), config_) {
  const std::string optimizer = join_path(folder, kOptimizerFile);
  if (file_exists(optimizer)) {
    optimizer_.emplace(optimizer);
  }
}

void Checkpoint::load_optimizer_range(std::string_view name, const graph::TensorType& type,
                                      int64_t first, int64_t count, void* dst) const {
  if (!optimizer_) fail(folder_, "has no optimizer state; expected {}", kOptimizerFile);
  const Safetensors::Entry entry = optimizer_->find(name);
  if (entry.tensor == nullptr) fail(optimizer_->path(), "tensor {} is missing", quote(name));
  if (entry.tensor->dims != type.dims) {
    fail(optimizer_->path(), "tensor {} has shape [{}]; expected [{}]", quote(name),
         fmt::join(entry.tensor->dims, ","), fmt::join(type.dims, ","));
  }
  entry.file->read(*entry.tensor, first, count, type.dtype, dst);
}

}  // namespace hocket::checkpoint
