// SPDX-License-Identifier: Apache-2.0
#include "train/saver.h"

#include <algorithm>
#include <cmath>

#include "checkpoint/checkpoint.h"
#include "checkpoint/resolve.h"
#include "comm/together.h"

namespace hocket::train {

std::string checkpoint_folder(const engine::Run& run) {
  return run.config.output.dir + "/checkpoints";
}

void Saver::open(const runtime::LocalRanks& ranks) {
  folder_.emplace(checkpoint_folder(run_), ranks.processes(), ranks.ids());
}

void Saver::set_last(const std::string& checkpoint) {
  last_ = checkpoint;
  stop_.set_resume(last_.empty() ? "there is no checkpoint yet: the same command starts over"
                                 : "the same command goes on from " + last_);
}

namespace {

template <class Number>
bool all_finite(const runtime::Device& device, const std::byte* data, int64_t count) {
  std::vector<Number> piece;
  for (int64_t done = 0; done < count; done += std::ssize(piece)) {
    piece.resize(static_cast<size_t>(std::min<int64_t>(count - done, 1 << 18)));
    const auto size = static_cast<int64_t>(sizeof(Number));
    device.copy(piece.data(), data + done * size, std::ssize(piece) * size);
    if (!std::all_of(piece.begin(), piece.end(), [](Number x) { return std::isfinite(x); })) {
      return false;
    }
  }
  return true;
}

/// The first tensor of a store that holds a value that is not finite; empty: none.
std::string not_finite(const runtime::Store& store) {
  for (int32_t rank : store.ranks().ids()) {
    for (const auto& [name, entry] : store.at(rank).entries()) {
      const runtime::Device& device = store.at(rank).device();
      const std::byte* data = entry.memory->data();
      const int64_t count = entry.type.numel();
      const graph::DType dtype = entry.type.dtype;
      if ((dtype == graph::DType::f32 && !all_finite<float>(device, data, count)) ||
          (dtype == graph::DType::f64 && !all_finite<double>(device, data, count))) {
        return name;
      }
    }
  }
  return "";
}

}  // namespace

const std::string& Saver::save(int64_t step, const engine::Session& session,
                               const data::Dataset& dataset, const Position& position,
                               const std::vector<std::pair<int64_t, double>>& losses) {
  comm::together(session.ranks().processes(), [&] {
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
  content.end_of_text = dataset.tokenizer().eos_id();
  content.state.step = step;
  content.state.seed = static_cast<uint64_t>(run_.config.train.seed);
  content.state.config = run_.resolved.to_json_text();
  content.state.data = position.to_json();
  content.state.losses = losses;
  content.files = checkpoint::tokenizer_files(dataset.folder(), run_.model);
  storing([&] {
    set_last(train::save(folder(), session.compiled(), session.store(), std::move(content)));
  });
  return last_;
}

void Saver::prune(int64_t step) const {
  checkpoint::prune_checkpoints(folder(), step, run_.config.train.keep_last);
}

std::string Saver::last_or_none(const std::string& what) const {
  return last_.empty() ? "there is no checkpoint yet" : last_ + what;
}

}  // namespace hocket::train
