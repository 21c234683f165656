// SPDX-License-Identifier: Apache-2.0
#include "train/start.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/resolve.h"
#include "engine/params.h"
#include "engine/weights.h"
#include "kernels/backend.h"
#include "train/evaluate.h"
#include "train/resume.h"
#include "train/saver.h"

namespace hocket::train {

namespace {

/// Throws Error if the folder has weights in a form that is not read: a new start would leave them
/// aside silently.
void refuse_other_weights(const std::string& folder) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (file_exists(join_path(folder, name))) {
      fail(folder,
           "has {}, which is not read, and no safetensors; try to save it again with "
           "safe_serialization=True, or model.init: random to leave its weights aside",
           name);
    }
  }
}

/// The position that the newest checkpoint was saved at. False if there is none.
bool find_checkpoint(const engine::Run& run, const RunData& data,
                     const checkpoint::RunFolder& checkpoints, Start& start) {
  const engine::TrainSection& train = run.config.train;
  const std::string& folder = checkpoints.path();
  checkpoint::clean_checkpoints(checkpoints);
  if (!train.resume) {
    if (!checkpoint::list_checkpoints(folder).empty()) {
      fail(folder,
           "holds checkpoints, and train.resume=false starts a new training; choose "
           "another output.dir, or remove this folder");
    }
    return false;
  }
  const auto latest =
      checkpoint::latest_checkpoint(folder, checkpoint::Verify::all, checkpoints.processes());
  if (!latest) return false;
  // Its contents were compared a moment ago.
  start.from.emplace(*latest, checkpoint::Verify::lengths);
  check_same_training(run, data.fingerprint(), *start.from);
  start.changed_loss = changed_loss(run, *start.from);
  const checkpoint::RunState& state = start.from->state();
  const Position position = Position::of(*start.from);
  start.done = {state.step, position.skipped, position.time_s, state.losses};
  start.began_with = position.began_with;
  start.best = position.best;
  start.frozen = position.frozen;
  start.prompts = position.prompts;
  start.tokens = position.tokens;
  start.generated = position.generated;
  // The same bits again: not the fastest kernels of this processor, but those of the steps before.
  if (!position.kernels.empty() && !kernels::use_cpu_level(position.kernels)) {
    start.kernels = position.kernels;
  }
  // The number of steps that fit continues from the previous one, and its position.
  const std::string where = *latest + "/run.json: config";
  const nlohmann::json config = parse_json(state.config, where);
  const double minutes = JsonView(config, where).at("train").get_double("minutes", 0);
  if (train.minutes > 0 && minutes == train.minutes) {
    start.course = position.course;
  }
  return true;
}

/// Returns whether two paths lead to one place.
bool is_same_place(const std::string& one, const std::string& other) {
  std::error_code none;  // the result is empty then
  const std::filesystem::path place = std::filesystem::weakly_canonical(one, none);
  return one == other ||
         (!place.empty() && place == std::filesystem::weakly_canonical(other, none));
}

constexpr std::string_view kFrom = "from ", kAnd = " and ";

enum class Named { first, last };

/// Returns whether a folder is the first or the last of "from <folder>" or "from <folder> and
/// <adapter>".
bool names_folder(const std::string& began_with, Named which, const std::string& folder) {
  if (!began_with.starts_with(kFrom)) return false;
  const std::string named = began_with.substr(kFrom.size());
  if (is_same_place(named, folder)) return true;
  // A path may have the word, too: every place of it may be the one between both folders.
  for (size_t at = named.find(kAnd); at != named.npos; at = named.find(kAnd, at + 1)) {
    const std::string part =
        which == Named::first ? named.substr(0, at) : named.substr(at + kAnd.size());
    if (is_same_place(part, folder)) return true;
  }
  return false;
}

/// Keeps the files that a training begins with. Returns a clause about one that is another file
/// now; empty: none, or not known.
std::string note_files(std::vector<std::string> now, std::vector<std::string>* began) {
  if (began->empty()) {
    *began = std::move(now);
    return "";
  }
  return change_of_files(*began, now);
}

/// Notes the files of an adapter's base. Warns where a resumed training reads it from another place
/// than at the beginning, since a run that it is of may have newer checkpoints, or other files.
void check_base(const std::string& base, Start& start) {
  const std::string changed = note_files(weight_files(base), &start.frozen.base);
  if (!start.from) return;
  const std::string& then = start.began_with;
  if (!then.empty() && !names_folder(then, Named::first, base)) {
    log_warning(
        "the adapter's base is read from {}, and the training began {}; expected the same weights",
        base, then);
  } else if (!changed.empty()) {
    log_warning(
        "the adapter's base is read from {}, where {}; expected the same weights; try to put the "
        "former files back",
        base, changed);
  }
}

}  // namespace

std::string Start::describe() const {
  return from ? fmt::format("of checkpoint {} (step {})", from->folder(), done.step) : began_with;
}

void claim_folder(const std::string& dir) {
  make_dirs(dir);
  if (file_exists(dir + "/.lock") || file_exists(dir + "/checkpoints")) return;
  std::vector<std::string> others;
  for (const char* name : {"metrics.jsonl", "report.html", "trace.json.gz", "predicted.json.gz"}) {
    if (file_exists(join_path(dir, name))) {
      others.push_back(name);
    }
  }
  if (!others.empty()) {
    fail(dir,
         "holds {}, which no training wrote here and this one would replace; choose another "
         "output.dir, or remove them",
         join(others, ", "));
  }
}

Start find_start(const engine::Run& run, const RunData& data,
                 const checkpoint::RunFolder& checkpoints) {
  const engine::ModelSection& model = run.config.model;
  const engine::TrainSection& train = run.config.train;
  Start start;
  start.course.steps = train.num_steps();
  if (run.lora && run.weights.empty()) {
    fail(run.name,
         "adapter.type is {}, and the model has no weights to add it to; expected model.path: a "
         "folder with weights",
         run.config.adapter.type);
  }
  const bool resumes = find_checkpoint(run, data, checkpoints, start);
  if (resumes && !run.lora) return start;
  if (!run.weights.empty()) {
    const checkpoint::ModelLocation at =
        checkpoint::resolve_model(model.path, checkpoint::Need::intact, checkpoints.processes());
    start.weights.emplace(at.folder, run.model, at.adapter);
    if (run.lora && checkpoints.processes().index() == 0) {
      check_base(at.folder, start);
    }
    if (resumes) return start;
    start.began_with = kFrom;
    start.began_with += at.adapter.empty() ? at.folder : at.adapter;
    if (run.lora && !run.adapter.empty()) {
      start.adapter = std::make_shared<const checkpoint::AdapterWeights>(run.adapter, run.model);
      if (start.adapter->plan().layout == models::ExpertLayout::modules) {
        fail(run.name,
             "adapter.path {} has an A and a B of each projection of an expert, which are merged "
             "and not trained on; try `hocket checkpoint merge`, and the merged model as "
             "model.path",
             run.adapter);
      }
      start.began_with += kAnd;
      start.began_with += run.adapter;
    }
    return start;
  }
  start.began_with = fmt::format("random, seed {}", train.seed);
  if (model.init == "auto" && is_directory(model.path)) {
    refuse_other_weights(model.path);
  }
  return start;
}

void check_reference(const FrozenModel& reference, Start& start) {
  if (reference.shares_store()) return;
  const engine::Run& frozen = reference.run();
  const std::string changed =
      note_files(weight_files(frozen.weights, frozen.adapter), &start.frozen.reference);
  const std::string& now = frozen.adapter.empty() ? frozen.weights : frozen.adapter;
  const std::string& then = start.began_with;
  if (!start.from || now.empty()) return;
  if (!reference.is_named() && !then.empty() && !names_folder(then, Named::last, now)) {
    log_warning(
        "the reference is read again from {}, and the training began {}; expected the same "
        "weights; try to name its model",
        now, then);
  } else if (!changed.empty()) {
    log_warning(
        "the reference is read again from {}, where {}; expected the same weights; try to put the "
        "former files back",
        now, changed);
  }
}

namespace {

/// Loads the weights and the adapter that are named.
void load_given(const Start& start, const engine::Compiled& compiled, const runtime::Store& store) {
  if (start.weights) {
    engine::load_weights(*start.weights, compiled, store);
  }
  if (start.adapter) {
    engine::load_adapter(*start.adapter, compiled, store);
  }
}

}  // namespace

void load_initial(const Start& start, const engine::Run& run, const engine::Compiled& compiled,
                  const runtime::Store& store) {
  load_given(start, compiled, store);
  engine::initialise(compiled.reference, compiled.program,
                     static_cast<uint64_t>(run.config.train.seed), store);
}

void load(Start& start, const engine::Run& run, engine::Session& session) {
  load_given(start, session.compiled(), session.store());
  start.weights.reset();
  start.adapter.reset();
  if (start.from) {
    restore(*start.from, session.compiled(), session.store());
    fmt::print("resumed from {} (step {})\n", start.from->folder(), start.done.step);
    auto changes = changed_settings(run, *start.from);
    if (!start.kernels.empty()) {
      changes.push_back(fmt::format("kernels {} -> {}", start.kernels, kernels::cpu_level()));
    }
    if (!changes.empty()) {
      fmt::print("changed since: {}\n", join(changes, ", "));
    }
    std::fflush(stdout);
    start.from.reset();
  }
  engine::initialise(session.graph(), session.program(),
                     static_cast<uint64_t>(run.config.train.seed), session.store());
}

}  // namespace hocket::train
