// SPDX-License-Identifier: Apache-2.0
#include "train/saver.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/resolve.h"

namespace hocket::train {

std::string checkpoint_folder(const engine::Run& run) {
  return run.config.output.dir + "/checkpoints";
}

void Saver::set_last(const std::string& checkpoint) {
  last_ = checkpoint;
  stop_.set_resume(last_.empty() ? "there is no checkpoint yet: the same command starts over"
                                 : "the same command goes on from " + last_);
}

const std::string& Saver::save(int64_t step, const engine::Session& session,
                               const data::Dataset& dataset, const Position& position,
                               const std::vector<std::pair<int64_t, double>>& losses) {
  checkpoint::CheckpointContent content;
  content.config = &run_.model;
  content.end_of_text = dataset.tokenizer().eos_id();
  content.state.step = step;
  content.state.seed = static_cast<uint64_t>(run_.config.train.seed);
  content.state.config = run_.resolved.to_json_text();
  content.state.data = position.to_json();
  content.state.losses = losses;
  content.files = checkpoint::tokenizer_files(dataset.folder(), run_.model);
  storing([&] { set_last(train::save(checkpoint_folder(run_), session, std::move(content))); });
  return last_;
}

void Saver::prune(int64_t step) const {
  checkpoint::prune_checkpoints(checkpoint_folder(run_), step, run_.config.train.keep_last);
}

std::string Saver::last_or_none(const std::string& what) const {
  return last_.empty() ? "there is no checkpoint yet" : last_ + what;
}

}  // namespace hocket::train
