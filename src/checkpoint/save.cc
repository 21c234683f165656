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
#include "checkpoint/model_files.h"
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

/// Slice of a parameter in a tensor that begins at byte `begin` of a file.
struct FileSlice {
  models::WeightSlice slice;
  int64_t begin = 0;
};

/// Tensor file, with the file offsets of every source tensor's elements.
struct TensorFile {
  std::string name;
  FileLayout layout;
  const std::vector<SharedTensor>* sources = nullptr;
  std::vector<std::vector<FileSlice>> slices;  ///< by source, sorted by element
};

/// Saves the checkpoint of one step, in all processes at once; see save().
class CheckpointWriter {
 public:
  CheckpointWriter(const RunFolder& run, const CheckpointContent& content);
  std::string save();

 private:
  void add_file(const std::string& name, const std::vector<SharedTensor>& sources,
                const std::vector<std::vector<models::WeightSlice>>& slices);
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

/// Saves in four steps. 1. The leader of each file system makes the folder, with all small files
/// and with empty tensor files of full length. 2. Every rank writes its parts into the tensor
/// files. 3. The leaders write run.json, which lists the parts of all ranks, and sync everything.
/// 4. The folders are renamed, that of process 0 last: a run resumes only from a checkpoint that
/// has its final name on every host. An error in one process is thrown in all.
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

/// Adds a file with the tensors of the sources' slices. A tensor may have slices of several
/// sources.
void CheckpointWriter::add_file(const std::string& name, const std::vector<SharedTensor>& sources,
                                const std::vector<std::vector<models::WeightSlice>>& slices) {
  TensorFile file;
  file.name = name;
  file.sources = &sources;
  std::vector<NamedTensor> stored;
  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < sources.size(); ++i) {
    for (const models::WeightSlice& slice : slices[i]) {
      if (by_name.emplace(slice.name, stored.size()).second) {
        stored.push_back({slice.name, {sources[i].type.dtype, slice.dims}});
      }
    }
  }
  file.layout = lay_out(stored, {{kStepKey, fmt::format("{}", content_.state.step)}});
  for (const std::vector<models::WeightSlice>& list : slices) {
    std::vector<FileSlice>& placed = file.slices.emplace_back();
    for (const models::WeightSlice& slice : list) {
      placed.push_back({slice, file.layout.begin[by_name.at(slice.name)]});
    }
  }
  tensor_files_.push_back(std::move(file));
}

/// Adds the parameters as the tensors that transformers would save, or PEFT of an adapter.
void CheckpointWriter::add_model() {
  std::map<std::string_view, size_t> by_name;
  for (size_t i = 0; i < content_.params.size(); ++i) {
    HOCKET_CHECK(by_name.emplace(content_.params[i].name, i).second, "parameter {} is given twice",
                 content_.params[i].name);
  }
  std::vector<std::vector<models::WeightSlice>> slices(content_.params.size());
  const std::vector<models::ParamWeights> map =
      content_.adapter ? content_.adapter->weights : models::weight_map(*content_.config);
  for (const models::ParamWeights& param : map) {
    const auto it = by_name.find(param.param);
    HOCKET_CHECK(it != by_name.end(), "parameter {} is not given", param.param);
    const SharedTensor& source = content_.params[it->second];
    HOCKET_CHECK(source.type.dims == param.dims, "parameter {} has type {}", param.param,
                 graph::to_string(source.type));
    slices[it->second] = param.forms[0];
    by_name.erase(it);
  }
  HOCKET_CHECK(by_name.empty(), "the model has no parameter {}", by_name.begin()->first);
  if (content_.adapter) {
    add_file(run_.is_shared() ? kAdapterFile : kAdapterPartFile, content_.params, slices);
  } else {
    add_file(run_.is_shared() ? kModelFile : kModelPartFile, content_.params, slices);
  }
}

void CheckpointWriter::add_optimizer() {
  std::vector<std::vector<models::WeightSlice>> slices;
  for (const SharedTensor& source : content_.optimizer) {
    slices.push_back({{source.name, source.type.dims}});
  }
  add_file(run_.is_shared() ? kOptimizerFile : kOptimizerPartFile, content_.optimizer, slices);
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
  if (!content_.files.contains(kGenerationFile)) {
    put(kGenerationFile, models::generation_config_json(config));
  }
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
  std::string bytes, column;
  for (const TensorFile& file : tensor_files_) {
    PartsWriter out(join_path(folder_, file.name), run_.host());
    if (run_.leads()) {
      const std::vector<int32_t>& ranks = run_.hosts()[static_cast<size_t>(run_.host())].ranks;
      out.put(ranks.empty() ? 0 : ranks.front(), 0, file.layout.header);
    }
    for (size_t i = 0; i < file.sources->size(); ++i) {
      const SharedTensor& source = (*file.sources)[i];
      const int64_t size = graph::size_of(source.type.dtype);
      const std::vector<FileSlice>& slices = file.slices[i];
      auto place = slices.begin();
      for (const Share& share : source.shares()) {
        const int64_t end = share.first + share.count;
        while (place != slices.end() && place->slice.offset + place->slice.numel() <= share.first) {
          ++place;
        }
        for (auto at = place; at != slices.end() && at->slice.offset < end; ++at) {
          const int64_t from = std::max(share.first, at->slice.offset);
          const int64_t to = std::min(end, at->slice.offset + at->slice.numel());
          if (to <= from) continue;
          bytes.resize(static_cast<size_t>((to - from) * size));
          source.copy(share.rank, bytes.data(),
                      static_cast<const char*>(share.data) + (from - share.first) * size,
                      std::ssize(bytes));
          models::for_each_run(at->slice, from, to - from, [&](const models::WeightRun& run) {
            const char* const first = bytes.data() + (run.element - from) * size;
            const auto length = static_cast<size_t>(run.count * size);
            if (run.stride == 1) {
              out.put(share.rank, at->begin + run.stored * size, {first, length});
              return;
            }
            column.resize(length);
            copy_strided(column.data(), 1, first, run.stride, run.count, size);
            out.put(share.rank, at->begin + run.stored * size, column);
          });
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
