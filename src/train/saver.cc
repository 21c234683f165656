// SPDX-License-Identifier: Apache-2.0
#include "train/saver.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/adapter.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_template.h"
#include "checkpoint/names.h"
#include "checkpoint/record.h"
#include "comm/run_on_all.h"
#include "data/model_text.h"
#include "graph/finite.h"

namespace hocket::train {

std::string checkpoint_folder(const engine::Run& run) {
  return run.config.output.dir + "/checkpoints";
}

namespace {

/// Returns the base of an adapter for readers elsewhere: the weights that were read, by a path that
/// other folders can use, since a run's newest checkpoint may be another one later; or a hub id.
std::string base_of_adapter(const engine::Run& run) {
  const std::string& model = run.config.model.path;
  return file_exists(model) ? std::filesystem::canonical(run.weights).string() : model;
}

/// Returns a note if an adapter's base is a checkpoint that its run will remove; empty: it is none.
std::string note_of_base(const std::string& base) {
  const std::string record = join_path(base, checkpoint::kRunFile);
  const bool is_of_run = checkpoint::step_of(file_name(base)) >= 0 &&
                         file_name(parent_path(base)) == "checkpoints" && file_exists(record);
  if (!is_of_run) return "";
  const nlohmann::json config = parse_json(checkpoint::read_record(record).state.config, record);
  const int64_t kept = JsonView(config, record + ": config")
                           .at("train")
                           .get_int("keep_last", engine::TrainSection().keep_last);
  if (kept == 0) return "";
  return fmt::format(
      "the adapter's base is {}, which its run removes when it goes on (train.keep_last: {}); "
      "try a copy of that folder as model.path, or train.keep_last=0 there",
      base, kept);
}

}  // namespace

void Saver::open(const runtime::LocalRanks& ranks) {
  folder_.emplace(checkpoint_folder(run_), ranks.processes(), ranks.ids());
}

std::vector<std::string> Saver::read_files(const RunData& data) {
  std::vector<std::string> notes;
  comm::run_on_all(folder_->processes(), [&] {
    if (!run_.weights.empty()) {
      files_ = checkpoint::read_model_files(run_.weights);
      if (!files_.left.empty()) {
        notes.push_back(fmt::format("checkpoints do not get these files of {}: {}", run_.weights,
                                    join(files_.left, ", ")));
      }
    }
    if (!files_.has(checkpoint::kTokenizerFile)) {
      checkpoint::take_tokenizer(data.tokenizer_path(), &files_);
    }
    checkpoint::complete_tokenizer(run_.model, &files_);
    if (!run_.weights.empty()) {
      checkpoint::complete_template(run_.weights, &files_);
    }
    if (run_.lora) {
      adapter_ = models::match_lora(run_.model, *run_.lora, run_.name);
      const std::string base = base_of_adapter(run_);
      files_.texts[checkpoint::kAdapterConfigFile] =
          checkpoint::adapter_config_json(*adapter_, run_.model, base);
      if (const std::string note = note_of_base(base); !note.empty()) {
        notes.push_back(note);
      }
    }
    if (!data.texts()) {
      const std::vector<int32_t> ids =
          data::beginning_of_text(text_files_of(run_), data.tokenizer());
      beginning_.emplace(ids.begin(), ids.end());
      const std::string& chosen = run_.config.data.chat_template;
      if (!chosen.empty() && checkpoint::set_chat_template(read_file(chosen), &files_)) {
        notes.push_back("checkpoints get the chat template " + chosen + ", not the model's");
      }
      return std::string();
    }
    // A trained model ends its texts as the documents of the data end.
    const int64_t end = data.tokenizer().eos_id();
    const bool says = files_.has(checkpoint::kGenerationFile) || !run_.model.eos_token_ids.empty();
    if (end >= 0 && says) {
      const std::string change = checkpoint::add_stop_tokens({end}, run_.model, &files_);
      if (!change.empty()) {
        notes.push_back(fmt::format("{}: documents of the data end with {}", change, end));
      }
    }
    return std::string();
  });
  return notes;
}

void Saver::set_file(const std::string& name, std::string text) {
  if (text.empty()) {
    files_.texts.erase(name);
  } else {
    files_.texts[name] = std::move(text);
  }
}

void Saver::set_last(const std::string& checkpoint) {
  last_ = checkpoint;
  stop_.set_resume(last_.empty() ? "there is no checkpoint yet: the same command starts over"
                                 : "the same command goes on from " + last_);
}

namespace {

/// Looks at copies of a few elements at a time.
bool all_finite(const runtime::Device& device, const runtime::PersistentStore::Entry& entry) {
  constexpr int64_t kPiece = int64_t{1} << 18;
  const graph::TensorType& type = entry.type;
  std::vector<std::byte> piece;
  for (int64_t done = 0; done < type.numel(); done += kPiece) {
    const int64_t count = std::min(type.numel() - done, kPiece);
    piece.resize(static_cast<size_t>(type.bytes_of(count)));
    device.copy(piece.data(), entry.data + type.bytes_of(done), std::ssize(piece));
    if (!graph::all_finite(type.dtype, piece.data(), count)) return false;
  }
  return true;
}

/// The first tensor of a store that holds a value that is not finite; empty: none.
std::string not_finite(const runtime::Store& store) {
  for (int32_t rank : store.ranks().ids()) {
    for (const auto& [name, entry] : store.at(rank).entries()) {
      if (!all_finite(store.at(rank).device(), entry)) {
        return name;
      }
    }
  }
  return "";
}

}  // namespace

const std::string& Saver::save(int64_t step, const engine::Session& session, const RunData& data,
                               const Position& position,
                               const std::vector<std::pair<int64_t, double>>& losses) {
  comm::run_on_all(session.ranks().processes(), [&] {
    if (const std::string name = not_finite(session.store()); !name.empty()) {
      fail_run("train",
               "step {} left values in {} that are not finite; it is not saved; {}; try a "
               "lower train.lr",
               step, name, last_or_none(" is intact"));
    }
    return std::string();
  });
  checkpoint::CheckpointContent content;
  content.config = &run_.model;
  content.end_of_text = data.tokenizer().eos_id();
  content.state.step = step;
  content.state.seed = static_cast<uint64_t>(run_.config.train.seed);
  content.state.config = run_.resolved.to_json_text();
  Position saved = position;
  saved.beginning = beginning_;
  content.state.data = saved.to_json();
  content.state.losses = losses;
  content.files = files_.texts;
  content.adapter = adapter_ ? &*adapter_ : nullptr;
  storing([&] {
    set_last(train::save(folder(), session.compiled(), session.store(), std::move(content)));
  });
  return last_;
}

void Saver::prune(int64_t step, int64_t best) const {
  checkpoint::prune_checkpoints(folder(), step, run_.config.train.keep_last, best);
}

std::string Saver::folder_of(int64_t step) const {
  return join_path(folder().path(), checkpoint::step_name(step));
}

std::string Saver::last_or_none(const std::string& what) const {
  return last_.empty() ? "there is no checkpoint yet" : last_ + what;
}

}  // namespace hocket::train
