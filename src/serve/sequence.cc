// SPDX-License-Identifier: Apache-2.0
#include "serve/sequence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/math.h"

namespace hocket::serve {

int64_t Scheduler::Sequence::num_changes() const {
  const int64_t stops = bans_stops() ? std::ssize(request.stop_tokens) : 0;
  return std::ssize(request.sampling.logit_bias) + stops +
         (has_penalties() ? std::ssize(counts) : 0);
}

void Scheduler::Sequence::open() {
  if (!tokens.empty()) return;
  tokens = request.prompt;
  if (has_penalties()) {
    for (const int32_t token : tokens) {
      counts[token] = 0;
    }
  }
}

void Scheduler::Sequence::add_token(int32_t token) {
  tokens.push_back(token);
  if (has_penalties()) {
    ++counts[token];
  }
}

void Scheduler::StepBuilder::add(Planned& planned) {
  Sequence& sequence = *planned.sequence;
  const auto number = static_cast<int32_t>(input_.pages.size());
  input_.pages.push_back(sequence.pages);
  input_.copies.insert(input_.copies.end(), {sequence.copied, static_cast<int32_t>(planned.begin)});
  const int64_t prompt = sequence.prompt_size();
  planned.row = std::ssize(input_.rows);
  for (int64_t i = planned.begin; i < planned.begin + planned.count; ++i) {
    input_.tokens.push_back(sequence.tokens[static_cast<size_t>(i)]);
    input_.positions.push_back(static_cast<int32_t>(i));
    input_.sequences.push_back(number);
    if (sequence.wants_prompt_logprobs() && i + 1 < prompt) {
      add_row(sequence, i + 1, sequence.tokens[static_cast<size_t>(i) + 1]);
      input_.masks.emplace_back();
    }
  }
  if (planned.draws) {
    add_draw(sequence, &planned);
  }
  planned.rows = std::ssize(input_.rows) - planned.row;
}

void Scheduler::StepBuilder::add_draw(Sequence& sequence, Planned* planned) {
  std::vector<uint32_t> mask;
  try {
    mask = mask_of(sequence);
  } catch (const Error& error) {
    sequence.update.error = error.what();
    planned->draws = false;
    planned->cannot_draw = true;
    return;
  }
  const bool masked = !mask.empty();
  if (masked && std::ranges::all_of(mask, [](uint32_t word) { return word == 0; })) {
    planned->draws = false;
    planned->cannot_draw = true;
    return;
  }
  add_row(sequence, std::ssize(sequence.tokens), -1);
  add_changes(sequence);
  input_.masks.push_back(std::move(mask));
  if (masked) {
    input_.settings[input_.settings.size() - ops::kNumSettings +
                    static_cast<size_t>(ops::Setting::masked)] = 1;
  }
}

void Scheduler::StepBuilder::add_row(const Sequence& sequence, int64_t position, int64_t given) {
  const Sampling& sampling = sequence.request.sampling;
  const int64_t alternatives =
      given >= 0 ? sequence.request.prompt_logprobs : sequence.request.logprobs;
  input_.rows.push_back(static_cast<int32_t>(input_.tokens.size()) - 1);
  for (const double setting :
       {sampling.temperature, static_cast<double>(sampling.top_k), sampling.top_p, sampling.min_p,
        sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty, 0.0,
        static_cast<double>(std::max<int64_t>(alternatives, 0)),
        sampling.tempered_logprobs ? 1.0 : 0.0,
        given < 0 && sequence.request.candidates ? 1.0 : 0.0}) {
    input_.settings.push_back(setting);
  }
  for (const int64_t draw :
       {static_cast<int64_t>(sampling.seed), sampling.sample, position, given}) {
    input_.draws.push_back(draw);
  }
  const auto end = static_cast<int32_t>(input_.changed_tokens.size());
  input_.ranges.insert(input_.ranges.end(), {end, end});
  input_.alternatives |= alternatives > 0;
}

void Scheduler::StepBuilder::add_changes(const Sequence& sequence) {
  std::map<int32_t, double> biases;
  for (const auto& [token, bias] : sequence.request.sampling.logit_bias) {
    biases[token] += bias;
  }
  if (sequence.bans_stops()) {
    for (const int32_t token : sequence.request.stop_tokens) {
      biases[token] = -std::numeric_limits<double>::infinity();
    }
  }
  const auto put = [&](int32_t token, int32_t count, double bias) {
    input_.changed_tokens.push_back(token);
    input_.change_counts.push_back(count);
    input_.change_biases.push_back(bias);
  };
  for (const auto& [token, count] : sequence.counts) {
    const auto found = biases.find(token);
    put(token, count, found == biases.end() ? 0 : found->second);
  }
  for (const auto& [token, bias] : biases) {
    if (!sequence.counts.contains(token)) {
      put(token, -1, bias);
    }
  }
  input_.ranges.back() = static_cast<int32_t>(input_.changed_tokens.size());
}

std::vector<uint32_t> Scheduler::StepBuilder::mask_of(Sequence& sequence) const {
  TokenConstraint* constraint = sequence.request.constraint.get();
  if (constraint == nullptr) return {};
  std::vector<uint32_t> mask(static_cast<size_t>(ceil_div(vocab_, int64_t{32})), 0);
  constraint->allow(mask);
  for (const int32_t token : sequence.request.stop_tokens) {
    uint32_t& word = mask[static_cast<size_t>(token) / 32];
    const uint32_t bit = 1u << (token % 32);
    if (sequence.bans_stops()) {
      word &= ~bit;  // a mask of banned tokens alone would leave none to draw
    } else if (constraint->may_end()) {
      word |= bit;
    }
  }
  return mask;
}

}  // namespace hocket::serve
