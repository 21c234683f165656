// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/names.h"
#include "checkpoint/parts.h"
#include "checkpoint/run_folder.h"
#include "comm/run_on_all.h"

namespace hocket::checkpoint {

namespace {

/// Share of the comparing work: of all compared items, every `of`-th, starting with item `number`.
struct WorkShare {
  int64_t number = 0, of = 1;
};

bool holds_tensors(const std::string& name) {
  return name == kModelFile || name == kOptimizerFile || name == kModelPartFile ||
         name == kOptimizerPartFile || name == kAdapterFile || name == kAdapterPartFile;
}

/// Throws unless the metadata of a tensor file names the step of run.json.
void check_step_of(const std::string& folder, const std::string& name, int64_t step) {
  const SafetensorsFile file(join_path(folder, name));
  const auto said = file.metadata().find(kStepKey);
  if (said == file.metadata().end()) fail(folder, "{} states no step", name);
  if (said->second != fmt::format("{}", step)) {
    fail(folder, "{} is of step {}; run.json is of step {}", name, quote(said->second), step);
  }
}

/// Compares checksums of whole files and of the parts that this host stores. Items are
/// distributed round-robin over the processes that see the same files.
void compare_contents(const std::string& folder, const RunRecord& record, int32_t host,
                      Verify verify, WorkShare share) {
  int64_t count = 0;
  const auto is_mine = [&] { return count++ % share.of == share.number; };
  for (const auto& [name, file] : record.files) {
    const bool optimizer = name == kOptimizerFile || name == kOptimizerPartFile;
    if (verify == Verify::lengths || (verify == Verify::weights && optimizer)) continue;
    const std::string path = join_path(folder, name);
    if (file.parts.empty()) {
      if (is_mine() && hash_file(path).hex() != file.hash) {
        fail(folder, "{} has a wrong checksum: it was changed or is damaged", name);
      }
      continue;
    }
    const RandomFile opened(path);
    for (const Part& part : file.parts) {
      if (part.host == host && is_mine() && !is_intact(opened, part)) {
        fail(folder,
             "{} has a wrong checksum in a part written by rank {}: it was changed or is damaged",
             name, part.rank);
      }
    }
  }
}

/// Returns the index of the host that owns the folder; 0 where all ranks share one file system.
int32_t host_of(const std::string& folder, const RunRecord& record) {
  if (record.hosts.empty()) return 0;
  const std::string path = join_path(folder, kHostFile);
  if (!file_exists(path)) fail(folder, "{} is missing", kHostFile);
  return read_host(path, record);
}

/// Verifies a folder, cheapest checks first, and returns its run.json. Throws Error at the first
/// defect.
RunRecord verified_record(const std::string& folder, Verify verify, WorkShare share) {
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
  // The folder may have been copied to any other name, so only names of the form step-N are
  // compared.
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
  const int32_t host = host_of(folder, record);
  for (const auto& [name, file] : record.files) {
    if (holds_tensors(name)) {
      check_step_of(folder, name, record.state.step);
    }
  }
  compare_contents(folder, record, host, verify, share);
  return record;
}

/// Result of one process: the checksum of the record, or the defect without the folder's name.
struct Finding {
  std::string hash, defect;
};

Finding examine(const std::string& folder, Verify verify, WorkShare share) {
  try {
    return {verified_record(folder, verify, share).hash, ""};
  } catch (const Error& error) {
    return {"", error.beside(folder)};
  }
}

/// Returns the first defect that any process finds, without the folder's name; empty if the
/// checkpoint is intact for all. Processes that see the same run.json (by file identity) see the
/// same folder, so they divide the comparing.
std::string defect(const std::string& folder, Verify verify, comm::Processes& processes) {
  if (processes.size() == 1) return examine(folder, verify, {}).defect;
  const std::string run = join_path(folder, kRunFile);
  const std::vector<std::string> seen =
      processes.all_gather(file_exists(run) ? file_identity(run) : "");
  const auto mine = static_cast<size_t>(processes.index());
  const auto same = [&](auto end) { return std::count(seen.begin(), end, seen[mine]); };
  const WorkShare share = {same(seen.begin() + static_cast<std::ptrdiff_t>(mine)),
                           same(seen.end())};
  Finding finding;
  if (!is_directory(folder)) {
    finding.defect = fmt::format("is missing on host {}", host_name());
  } else {
    finding = examine(folder, verify, share);
  }
  // One message per process: the checksum on the first line, the defect after it.
  const std::vector<std::string> lines = processes.all_gather(
      finding.hash + "\n" +
      (finding.defect.empty() ? "" : processes.name() + ": " + finding.defect));
  for (const std::string& line : lines) {
    const size_t end = line.find('\n');
    if (end + 1 < line.size()) return line.substr(end + 1);
  }
  const bool one = std::all_of(lines.begin(), lines.end(),
                               [&](const std::string& line) { return line == lines[0]; });
  return one ? "" : fmt::format("{} differs between hosts", kRunFile);
}

/// Returns the names of a run's checkpoints that any process sees, sorted by step.
std::vector<std::string> names_of(const std::string& run_folder, comm::Processes& processes) {
  std::string mine;
  for (const auto& [step, path] : list_checkpoints(run_folder)) {
    mine += file_name(path) + "\n";
  }
  std::set<std::pair<int64_t, std::string>> all;
  for (const std::string& lines : processes.all_gather(mine)) {
    for (const std::string& name : split(lines, '\n')) {
      if (!name.empty()) {
        all.emplace(step_of(name), name);
      }
    }
  }
  std::vector<std::string> names;
  for (const auto& [step, name] : all) {
    names.push_back(name);
  }
  return names;
}

/// Runs `work` once per file system, while the other processes wait. An error of one process is
/// thrown in all.
void run_on_leaders(const RunFolder& run, const std::function<void()>& work) {
  comm::run_on_all(run.processes(), [&] {
    if (run.leads()) {
      work();
    }
    return std::string();
  });
}

}  // namespace

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

void verify_checkpoint(const std::string& folder, Verify verify, comm::Processes& processes) {
  const std::string why = defect(folder, verify, processes);
  if (!why.empty()) fail(folder, "not an intact checkpoint: {}", why);
}

std::optional<std::string> latest_checkpoint(const std::string& run_folder, Verify verify,
                                             comm::Processes& processes) {
  std::vector<std::string> found = names_of(run_folder, processes);
  std::reverse(found.begin(), found.end());
  std::vector<std::string> damaged;
  for (const std::string& name : found) {
    const std::string path = join_path(run_folder, name);
    const std::string why = defect(path, verify, processes);
    if (!why.empty()) {
      damaged.push_back(fmt::format("{} ({})", name, why));
      continue;
    }
    if (!damaged.empty()) {
      log_warning("{}: damaged: {}; using {}, which is intact", run_folder, join(damaged, ", "),
                  name);
    }
    return path;
  }
  if (!damaged.empty()) {
    fail(run_folder, "no intact checkpoint: {}; restore one, or remove them to start over",
         join(damaged, ", "));
  }
  return {};
}

void clean_checkpoints(const RunFolder& run) {
  run_on_leaders(run, [&] { remove_left_behind(run.path()); });
}

void prune_checkpoints(const RunFolder& run, int64_t last, int64_t keep, int64_t best) {
  if (keep <= 0) return;
  run_on_leaders(run, [&] {
    auto found = list_checkpoints(run.path());
    std::erase_if(found, [last](const auto& c) {
      return c.first > last || !examine(c.second, Verify::lengths, {}).defect.empty();
    });
    for (size_t i = 0; i + static_cast<size_t>(keep) < found.size(); ++i) {
      if (found[i].first != best) {
        remove_tree(found[i].second);
      }
    }
  });
}

namespace {

// Verifies the folder before any member opens a file, so that a damaged folder gets one clear
// message.
const std::string& checked(const std::string& folder, Verify verify) {
  verify_checkpoint(folder, verify);
  return folder;
}

}  // namespace

Checkpoint::Checkpoint(const std::string& folder, Verify verify)
    : folder_(checked(folder, verify)),
      config_(models::read_config(folder)),
      record_(read_record(join_path(folder, kRunFile))),
      host_(host_of(folder, record_)) {
  const char* const adapter = is_partial() ? kAdapterPartFile : kAdapterFile;
  if (record_.files.contains(adapter)) {
    adapter_ = std::make_shared<const AdapterWeights>(folder, config_, adapter);
  } else {
    weights_.emplace(join_path(folder, is_partial() ? kModelPartFile : kModelFile), config_);
  }
  const std::string optimizer =
      join_path(folder, is_partial() ? kOptimizerPartFile : kOptimizerFile);
  if (file_exists(optimizer)) {
    optimizer_.emplace(optimizer);
  }
}

void Checkpoint::load_range(std::string_view param, int64_t first, int64_t count,
                            graph::DType dtype, void* dst) const {
  if (adapter_) {
    adapter_->load_range(param, first, count, dtype, dst);
  } else {
    weights_->load_range(param, first, count, dtype, dst);
  }
}

std::vector<models::WeightSlice> Checkpoint::slices(std::string_view param) const {
  return adapter_ ? adapter_->slices(param) : weights_->slices(param);
}

TensorFiles::Entry Checkpoint::optimizer_tensor(std::string_view name,
                                                const graph::TensorType& type) const {
  if (!optimizer_) fail(folder_, "has no optimizer state; expected {}", kOptimizerFile);
  const TensorFiles::Entry entry = optimizer_->find(name);
  if (entry.tensor == nullptr) fail(optimizer_->path(), "tensor {} is missing", quote(name));
  if (entry.tensor->dims != type.dims) {
    fail(optimizer_->path(), "tensor {} has shape [{}]; expected [{}]", quote(name),
         fmt::join(entry.tensor->dims, ","), fmt::join(type.dims, ","));
  }
  return entry;
}

void Checkpoint::load_optimizer_range(std::string_view name, const graph::TensorType& type,
                                      int64_t first, int64_t count, void* dst) const {
  const TensorFiles::Entry entry = optimizer_tensor(name, type);
  entry.file->read(*entry.tensor, first, count, type.dtype, dst);
}

}  // namespace hocket::checkpoint
