// SPDX-License-Identifier: Apache-2.0
// Implements: save_checkpoint (checkpoint.h).
#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/names.h"
#include "checkpoint/parts.h"
#include "comm/run_on_all.h"
#include "models/weights.h"

namespace hocket::checkpoint {

namespace {

const char* torch_name(graph::DType dtype) {
  switch (dtype) {
    case graph::DType::f32:
      return "float32";
    case graph::DType::f64:
      return "float64";
    case graph::DType::bf16:
      return "bfloat16";
    case graph::DType::f16:
      return "float16";
    default:
      break;
  }
  HOCKET_CHECK(false, "parameters of type {}", graph::to_string(dtype));
  return "";
}

/// Replaces the folder `to` by the finished folder `from`, atomically where the file system can.
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

/// Removes a folder and ignores errors: the error that led here is the one to report.
void remove_quietly(const std::string& folder) {
  try {
    remove_tree(folder);
  } catch (const Error&) {
  }
}

/// Elements [first, first + count) of a tensor, stored in a file from byte `begin` on.
struct FileRange {
  int64_t first = 0, count = 0, begin = 0;
};

/// Tensor file, with the file offsets of every source tensor's elements.
struct TensorFile {
  std::string name;
  FileLayout layout;
  const std::vector<SharedTensor>* sources = nullptr;
  std::vector<std::vector<FileRange>> ranges;  ///< by source, sorted by element
};

/// Saves the checkpoint of one step, in all processes at once; see save().
class CheckpointWriter {
 public:
  CheckpointWriter(const RunFolder& run, const CheckpointContent& content);
  std::string save();

 private:
  void add_file(const std::string& name, const std::vector<SharedTensor>& sources,
                const std::vector<NamedTensor>& stored, const std::vector<size_t>& source_of,
                const std::vector<int64_t>& first_of);
  void add_model();
  void add_optimizer();
  std::string begin();
  void expect_same_files(const std::vector<std::string>& all) const;
  std::string write_parts() const;
  std::string record(const std::vector<std::string>& all) const;
  void finish(const std::string& text) const;
  void publish();
  void on_all(const std::function<void()>& work) const {
    comm::run_on_all(run_.processes(), [&] {
      work();
      return std::string();
    });
  }

  const RunFolder& run_;
  const CheckpointContent& content_;
  const graph::DType dtype_;
  const std::string final_;   ///< path of the finished checkpoint
  const std::string folder_;  ///< temporary path until then
  std::vector<TensorFile> tensor_files_;
  FileRecords small_;  ///< files other than tensor files, on leaders only
  bool published_ = false;
};

CheckpointWriter::CheckpointWriter(const RunFolder& run, const CheckpointContent& content)
    : run_(run),
      content_(content),
      dtype_(content.params[0].type.dtype),
      final_(join_path(run.path(), step_name(content.state.step))),
      folder_(temporary_name(final_, run.leader_pid())) {
  add_model();
  if (!content.optimizer.empty()) {
    add_optimizer();
  }
}

/// 1. The leader of each file system makes the folder, with all small files and with empty tensor
/// files of full length. 2. Every rank writes its parts into the tensor files. 3. The leaders write
/// run.json, which lists the parts of all ranks, and sync everything. 4. The folders are renamed,
/// that of process 0 last: a run resumes only from a checkpoint that has its final name on every
/// host. An error in one process is thrown in all.
std::string CheckpointWriter::save() {
  try {
    expect_same_files(comm::run_on_all(run_.processes(), [&] { return begin(); }));
    const std::vector<std::string> parts =
        comm::run_on_all(run_.processes(), [&] { return write_parts(); });
    std::string text = comm::run_on_all(run_.processes(), [&] { return record(parts); })[0];
    finish(text);
    publish();
  } catch (...) {
    if (run_.leads()) {
      remove_quietly(folder_);
      if (published_ && !run_.is_shared()) {
        remove_quietly(final_);  // other hosts may lack the renamed folder
      }
    }
    throw;
  }
  return final_;
}

/// Adds a file with the tensors `stored`. Tensor i holds the elements of source `source_of[i]` from
/// `first_of[i]` on.
void CheckpointWriter::add_file(const std::string& name, const std::vector<SharedTensor>& sources,
                                const std::vector<NamedTensor>& stored,
                                const std::vector<size_t>& source_of,
                                const std::vector<int64_t>& first_of) {
  TensorFile file;
  file.name = name;
  file.sources = &sources;
  file.layout = lay_out(stored, {{kStepKey, fmt::format("{}", content_.state.step)}});
  file.ranges.resize(sources.size());
  for (size_t i = 0; i < stored.size(); ++i) {
    file.ranges[source_of[i]].push_back(
        {first_of[i], stored[i].type.numel(), file.layout.begin[i]});
  }
  for (std::vector<FileRange>& ranges : file.ranges) {
    std::sort(ranges.begin(), ranges.end(),
              [](const FileRange& a, const FileRange& b) { return a.first < b.first; });
  }
  tensor_files_.push_back(std::move(file));
}

/// Adds the parameters as the tensors that transformers would save.
void CheckpointWriter::add_model() {
  std::map<std::string_view, size_t> by_name;
  for (size_t i = 0; i < content_.params.size(); ++i) {
    HOCKET_CHECK(by_name.emplace(content_.params[i].name, i).second, "parameter {} is given twice",
                 content_.params[i].name);
  }
  std::vector<NamedTensor> stored;
  std::vector<size_t> source_of;
  std::vector<int64_t> first_of;
  for (const models::ParamWeights& param : models::weight_map(*content_.config)) {
    const auto it = by_name.find(param.param);
    HOCKET_CHECK(it != by_name.end(), "parameter {} is not given", param.param);
    const SharedTensor& source = content_.params[it->second];
    HOCKET_CHECK(source.type.dims == param.dims, "parameter {} has type {}", param.param,
                 graph::to_string(source.type));
    for (const models::WeightSlice& slice : param.forms[0]) {
      stored.push_back({slice.name, {source.type.dtype, slice.dims}});
      source_of.push_back(it->second);
      first_of.push_back(slice.offset);
    }
    by_name.erase(it);
  }
  HOCKET_CHECK(by_name.empty(), "the model has no parameter {}", by_name.begin()->first);
  add_file(run_.is_shared() ? kModelFile : kModelPartFile, content_.params, stored, source_of,
           first_of);
}

void CheckpointWriter::add_optimizer() {
  std::vector<NamedTensor> stored;
  std::vector<size_t> source_of;
  for (const SharedTensor& source : content_.optimizer) {
    source_of.push_back(stored.size());
    stored.push_back({source.name, source.type});
  }
  add_file(run_.is_shared() ? kOptimizerFile : kOptimizerPartFile, content_.optimizer, stored,
           source_of, std::vector<int64_t>(stored.size(), 0));
}

/// Makes the folder and its small files, on leaders only. Returns a line for every file that must
/// be the same on all hosts.
std::string CheckpointWriter::begin() {
  if (!run_.leads()) return "";
  make_dirs(run_.path());
  remove_left_behind(run_.path());
  make_dirs(folder_);
  const auto put = [&](const std::string& name, const std::string& bytes) {
    FileWriter out(join_path(folder_, name), FileWriter::Mode::create);
    out.write(bytes);
    out.sync();
    out.close();
    small_[name] = {out.written(), hash128(bytes).hex(), {}};
  };
  for (const auto& [name, bytes] : content_.files) {
    put(name, bytes);
  }
  const models::ModelConfig config =
      models::with_end_of_text(*content_.config, content_.end_of_text);
  put(kConfigFile, models::config_json(config, torch_name(dtype_)));
  put("generation_config.json", models::generation_config_json(config));
  for (const TensorFile& file : tensor_files_) {
    FileWriter out(join_path(folder_, file.name), FileWriter::Mode::create);
    out.set_size(file.layout.bytes);
    out.close();
  }
  std::string lines;
  for (const auto& [name, file] : small_) {
    lines += fmt::format("{} {} {}\n", name, file.bytes, file.hash);
  }
  return lines;
}

void CheckpointWriter::expect_same_files(const std::vector<std::string>& all) const {
  const std::vector<std::string> first = split(all[0], '\n');
  for (const std::string& lines : all) {
    if (lines.empty() || lines == all[0]) continue;
    for (const std::string& line : split(lines, '\n')) {
      if (std::find(first.begin(), first.end(), line) == first.end()) {
        fail(final_, "{} on one host differs from that of the first; expected the same files",
             quote(line.substr(0, line.find(' '))));
      }
    }
    fail(final_, "one host lacks files of the first: {}", quote(all[0]));
  }
}

/// Writes this process's elements into the tensor files. Returns the parts by file.
std::string CheckpointWriter::write_parts() const {
  PartsByFile parts;
  std::string bytes;
  for (const TensorFile& file : tensor_files_) {
    PartsWriter out(join_path(folder_, file.name), run_.host());
    if (run_.leads()) {
      const std::vector<int32_t>& ranks = run_.hosts()[static_cast<size_t>(run_.host())].ranks;
      out.put(ranks.empty() ? 0 : ranks.front(), 0, file.layout.header);
    }
    for (size_t i = 0; i < file.sources->size(); ++i) {
      const SharedTensor& source = (*file.sources)[i];
      const int64_t size = graph::size_of(source.type.dtype);
      const std::vector<FileRange>& ranges = file.ranges[i];
      auto place = ranges.begin();
      for (const Share& share : source.shares()) {
        const int64_t end = share.first + share.count;
        while (place != ranges.end() && place->first + place->count <= share.first) {
          ++place;
        }
        for (auto at = place; at != ranges.end() && at->first < end; ++at) {
          const int64_t from = std::max(share.first, at->first);
          const int64_t to = std::min(end, at->first + at->count);
          if (to <= from) continue;
          bytes.resize(static_cast<size_t>((to - from) * size));
          source.copy(share.rank, bytes.data(),
                      static_cast<const char*>(share.data) + (from - share.first) * size,
                      std::ssize(bytes));
          out.put(share.rank, at->begin + (from - at->first) * size, bytes);
        }
      }
    }
    parts[file.name] = out.finish();
  }
  return parts_json(parts);
}

/// Returns the text of run.json in process 0, which broadcasts it; empty in others.
std::string CheckpointWriter::record(const std::vector<std::string>& all) const {
  if (run_.processes().index() != 0) return "";
  FileRecords files = small_;
  for (const TensorFile& file : tensor_files_) {
    files[file.name].bytes = file.layout.bytes;
  }
  for (const std::string& process : all) {
    for (auto& [name, parts] : parse_parts(process)) {
      std::vector<Part>& list = files.at(name).parts;
      std::move(parts.begin(), parts.end(), std::back_inserter(list));
    }
  }
  for (const TensorFile& file : tensor_files_) {
    int64_t written = 0;
    for (const Part& part : files[file.name].parts) {
      written += part.bytes();
    }
    if (run_.is_shared() && written != file.layout.bytes) {
      fail_run(final_, "{}: the ranks have {} of {} bytes", file.name, written, file.layout.bytes);
    }
  }
  return record_json(content_.state, dtype_, files,
                     run_.is_shared() ? std::vector<Host>() : run_.hosts());
}

void CheckpointWriter::finish(const std::string& text) const {
  on_all([&] {
    if (!run_.leads()) return;
    const auto put = [&](const char* name, const std::string& bytes) {
      FileWriter out(join_path(folder_, name), FileWriter::Mode::create);
      out.write(bytes);
      out.sync();
      out.close();
    };
    put(kRunFile, text);
    if (!run_.is_shared()) {
      put(kHostFile, host_json(run_.host(), read_record(join_path(folder_, kRunFile)).hash));
    }
    sync_dir(folder_);
  });
}

void CheckpointWriter::publish() {
  const auto rename = [&] {
    published_ = true;
    replace_folder(folder_, final_);
  };
  const bool first = run_.processes().index() == 0;
  if (!run_.is_shared()) {
    on_all([&] {
      if (run_.leads() && !first) {
        rename();
      }
    });
  }
  on_all([&] {
    if (first) {
      rename();
    }
  });
}

}  // namespace

std::string save_checkpoint(const RunFolder& run, const CheckpointContent& content) {
  HOCKET_CHECK(content.config != nullptr && !content.params.empty(), "a checkpoint needs a model");
  return CheckpointWriter(run, content).save();
}

}  // namespace hocket::checkpoint
