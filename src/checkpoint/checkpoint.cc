// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
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
constexpr int64_t kFormat = 1;

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
    case graph::DType::f32: return "float32";
    case graph::DType::f64: return "float64";
    case graph::DType::bf16: return "bfloat16";
    default: break;
  }
  HOCKET_CHECK(false, "parameters of type {}", graph::to_string(dtype));
  return "";
}

std::string state_json(const RunState& state, graph::DType dtype,
                       const std::map<std::string, int64_t>& files) {
  json losses = json::array();
  // JSON has no NaN: null stands for it. Finite doubles are written with enough digits.
  for (const auto& [step, loss] : state.losses) losses.push_back({step, loss});
  const json object = {{"hocket_checkpoint", kFormat},
                       {"step", state.step},
                       {"seed", state.seed},
                       {"dtype", graph::to_string(dtype)},
                       {"config", state.config},
                       {"data", state.data.empty() ? json(nullptr)
                                                   : parse_json(state.data, "run.json: data")},
                       {"losses", losses},
                       {"files", files}};
  return object.dump(1) + "\n";
}

RunState parse_state(const JsonView& in) {
  if (in.get_int("hocket_checkpoint") != kFormat)
    in.at("hocket_checkpoint").fail(fmt::format("is not {}: written by another version", kFormat));
  RunState s;
  s.step = in.get_int("step");
  const json& seed = in.at("seed").json();
  if (!seed.is_number_unsigned()) in.at("seed").fail("is no whole number from 0");
  s.seed = seed.get<uint64_t>();
  s.config = in.get_string("config");
  if (in.has("data")) s.data = in.at("data").json().dump();
  const JsonView losses = in.at("losses");
  for (size_t i = 0; i < losses.size(); ++i) {
    const JsonView pair = losses.at(i);
    const bool nan = pair.at(1).is_null();
    s.losses.emplace_back(pair.at(0).as_int(), nan ? std::numeric_limits<double>::quiet_NaN()
                                                   : pair.at(1).as_double());
  }
  return s;
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

void write_synced(const std::string& path, std::string_view bytes,
                  std::map<std::string, int64_t>& files) {
  FileWriter out(path, FileWriter::Mode::create);
  out.write(bytes);
  out.sync();
  out.close();
  files[file_name(path)] = static_cast<int64_t>(bytes.size());
}

void write_tensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                   std::map<std::string, int64_t>& files) {
  FileWriter out(path, FileWriter::Mode::create);
  files[file_name(path)] = write_safetensors(out, tensors);
  out.sync();
  out.close();
}

bool is_alive(int64_t pid) {
  return pid > 0 && pid <= std::numeric_limits<pid_t>::max() && pid != ::getpid() &&
         (::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM);
}

/// Why a folder is no complete checkpoint; empty if it is one.
std::string defect(const std::string& folder) {
  const std::string run = join_path(folder, kRunFile);
  if (!file_exists(run)) return "no run.json";
  try {
    const json object = read_json(run);
    const JsonView in(object, run);
    if (in.get_int("hocket_checkpoint") != kFormat) return "run.json of another version";
    const JsonView files = in.at("files");
    for (const std::string& name : files.keys()) {
      const std::string path = join_path(folder, name);
      if (!file_exists(path)) return name + " is missing";
      const int64_t size = file_size(path), expected = files.get_int(name);
      if (size != expected) return fmt::format("{} has {} bytes of {}", name, size, expected);
    }
  } catch (const Error& e) {
    return e.what();
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
    std::map<std::string, int64_t> files;
    const auto put = [&](const std::string& file, std::string_view bytes) {
      write_synced(join_path(folder, file), bytes, files);
    };
    for (const auto& [file, bytes] : content.files) put(file, bytes);
    put(kConfigFile, models::config_json(*content.config, torch_name(dtype)));
    put("generation_config.json", models::generation_config_json(*content.config));
    write_tensors(join_path(folder, kModelFile), to_stored(*content.config, content.params), files);
    if (!content.optimizer.empty())
      write_tensors(join_path(folder, kOptimizerFile), content.optimizer, files);
    put(kRunFile, state_json(content.state, dtype, std::map<std::string, int64_t>(files)));
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
    if (const int64_t step = step_of(name); step >= 0 && is_directory(path))
      found.emplace_back(step, path);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<std::string> latest_checkpoint(const std::string& run_folder) {
  auto found = list_checkpoints(run_folder);
  std::reverse(found.begin(), found.end());
  std::vector<std::string> damaged;
  for (const auto& [step, path] : found) {
    const std::string why = defect(path);
    if (!why.empty()) {
      damaged.push_back(fmt::format("{} ({})", file_name(path), why));
      continue;
    }
    if (!damaged.empty())
      log_warning("{}: no complete checkpoint: {}; going on from {}", run_folder,
                  join(damaged, ", "), file_name(path));
    return path;
  }
  if (!damaged.empty())
    fail(run_folder, "no complete checkpoint: {}; restore one, or remove them to start over",
         join(damaged, ", "));
  return {};
}

void clean_checkpoints(const std::string& run_folder) {
  if (!is_directory(run_folder)) return;
  for (const std::string& name : list_dir(run_folder)) {
    const size_t mark = name.find(kTemporary);
    if (mark == name.npos || step_of(std::string_view(name).substr(0, mark)) < 0) continue;
    int64_t pid = 0;
    if (!parse_int(std::string_view(name).substr(mark + kTemporary.size()), &pid)) continue;
    if (!is_alive(pid)) remove_tree(join_path(run_folder, name));
  }
}

void prune_checkpoints(const std::string& run_folder, int64_t last, int64_t keep) {
  if (keep <= 0) return;
  auto found = list_checkpoints(run_folder);
  std::erase_if(found, [last](const auto& c) { return c.first > last; });
  for (size_t i = 0; i + static_cast<size_t>(keep) < found.size(); ++i)
    remove_tree(found[i].second);
}

namespace {

// Called before any file is opened, so that a damaged folder gets one clear message.
const std::string& checked(const std::string& folder) {
  const std::string why = defect(folder);
  if (!why.empty()) fail(folder, "not a complete checkpoint: {}", why);
  return folder;
}

RunState read_state(const std::string& path) {
  const json object = read_json(path);
  return parse_state(JsonView(object, path));
}

}  // namespace

Checkpoint::Checkpoint(const std::string& folder)
    : folder_(checked(folder)),
      config_(models::read_config(folder)),
      state_(read_state(join_path(folder, kRunFile))),
      weights_(join_path(folder, kModelFile), config_) {
  const std::string optimizer = join_path(folder, kOptimizerFile);
  if (file_exists(optimizer)) optimizer_.emplace(optimizer);
}

void Checkpoint::load_optimizer_range(std::string_view name, const graph::TensorType& type,
                                      int64_t first, int64_t count, void* dst) const {
  if (!optimizer_) fail(folder_, "has no optimizer state; expected {}", kOptimizerFile);
  const Safetensors::Entry e = optimizer_->find(name);
  if (e.tensor == nullptr) fail(optimizer_->path(), "tensor {} is missing", quote(name));
  if (e.tensor->dims != type.dims)
    fail(optimizer_->path(), "tensor {} has shape [{}]; expected [{}]", quote(name),
         fmt::join(e.tensor->dims, ","), fmt::join(type.dims, ","));
  e.file->read(*e.tensor, first, count, type.dtype, dst);
}

}  // namespace hocket::checkpoint
