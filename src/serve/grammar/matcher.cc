// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar/matcher.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/hash.h"

namespace hocket::serve::grammar {
namespace {

constexpr size_t kMaxStacks = 5'000;         // of one state: a row of its transitions is made whole
constexpr int64_t kMaxStateWork = 200'000;   // expressions entered to make one state
constexpr int64_t kMaxReadWork = 1'000'000;  // of a text that is read again, and of each byte:
constexpr int64_t kReadWorkOfByte = 32;
constexpr int64_t kMaxWork = int64_t{1} << 40;  // of one call; sums with it do not overflow
constexpr uint32_t kNodesPerWork = 8;      // nodes of the vocabulary that cost as much as a stack
constexpr uint32_t kNodesPerCheck = 1024;  // between two looks at the work of a part

[[noreturn]] void refuse_mask() {
  fail_run("json grammar",
           "too many ways to read the next token; try fewer branches of anyOf, or branches that "
           "begin with different properties");
}

}  // namespace

size_t Matcher::FrameHash::operator()(const Frame& frame) const {
  return hash_combine(uint64_t{frame.expr} << 32 | frame.place, frame.below);
}

size_t Matcher::StacksHash::operator()(const std::vector<StackId>& stacks) const {
  uint64_t hash = stacks.size();
  for (StackId stack : stacks) {
    hash = (hash ^ stack) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

Matcher::Matcher(const Grammar& grammar, const GrammarVocabulary& vocabulary)
    : grammar_(grammar), vocabulary_(vocabulary) {
  clear();
}

void Matcher::clear() {
  frames_.clear();
  stack_ids_.clear();
  states_.clear();
  state_ids_.clear();
  found_.clear();
  work_ = 0;
  bytes_ = 0;
  frames_.push_back({0, 0, kEmpty});
  states_.emplace_back();  // kDead
  state_ids_.emplace(std::vector<StackId>{}, kDead);
  states_[kDead].row = std::make_unique<Row>();
  states_[kDead].row->fill(kDead);
  enter(grammar_.root(), 0, kEmpty);
  start_ = state_of_found();
}

Matcher::StateId Matcher::step(StateId state, std::string_view bytes) {
  for (char c : bytes) {
    state = step(state, static_cast<uint8_t>(c));
  }
  return state;
}

Matcher::StateId Matcher::read(std::string_view text) {
  std::vector<StackId> stacks = states_[start_].stacks;
  const int64_t most = total_work_ + kMaxReadWork + kReadWorkOfByte * std::ssize(text);
  for (char c : text) {
    if (total_work_ > most) {
      fail_run("json grammar",
               "text of {} bytes takes too much work to be read again; try a schema whose branches "
               "of anyOf begin with different properties",
               text.size());
    }
    found_.clear();
    work_ = 0;
    for (StackId stack : stacks) {
      advance(stack, static_cast<uint8_t>(c));
    }
    std::sort(found_.begin(), found_.end());
    found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
    stacks = found_;
  }
  found_ = std::move(stacks);
  return state_of_found();
}

Matcher::StackId Matcher::push(ExprId expr, uint32_t place, StackId below) {
  const Frame frame{expr, place, below};
  const auto [it, made] = stack_ids_.emplace(frame, static_cast<StackId>(frames_.size()));
  if (made) {
    frames_.push_back(frame);
    bytes_ += 2 * sizeof(Frame) + 40;
  }
  return it->second;
}

void Matcher::add(StackId stack) {
  found_.push_back(stack);
  if (found_.size() > kMaxStacks) {
    fail_run("json grammar",
             "text can be read in more than {} ways at once; try a schema whose "
             "branches of anyOf begin with different properties",
             kMaxStacks);
  }
}

void Matcher::leave(StackId below) {
  if (below == kEmpty) {
    add(kEmpty);
    return;
  }
  const Frame frame = frames_[below];
  enter(frame.expr, frame.place, frame.below);
}

void Matcher::enter(ExprId expr, uint32_t place, StackId below) {
  const Expr& e = grammar_.expr(expr);
  if (!e.productive) return;
  ++total_work_;
  if (++work_ > kMaxStateWork) {
    fail_run("json grammar",
             "one byte of the text leads to more than {} expressions; try a "
             "smaller schema",
             kMaxStateWork);
  }
  switch (e.kind) {
    case Expr::Kind::text:
    case Expr::Kind::bytes:
      wait(expr, place, below);
      break;
    case Expr::Kind::machine:
      enter_machine(e, expr, place, below);
      break;
    case Expr::Kind::sequence: {
      const std::vector<ExprId>& parts = grammar_.list_of(e);
      if (place == parts.size()) {
        leave(below);
      } else {
        const bool last = place + 1 == parts.size();
        enter(parts[place], 0, last ? below : push(expr, place + 1, below));
      }
      break;
    }
    case Expr::Kind::choice:
      for (ExprId part : grammar_.list_of(e)) {
        enter(part, 0, below);
      }
      break;
    case Expr::Kind::repeat:
      enter_repeat(e, expr, place, below);
      break;
    case Expr::Kind::call:
      enter(grammar_.body_of(e), 0, below);
      break;
  }
}

void Matcher::enter_repeat(const Expr& e, ExprId expr, uint32_t rounds, StackId below) {
  const auto least = static_cast<uint32_t>(e.least);
  if (rounds >= least) {
    leave(below);
  }
  if (!grammar_.expr(e.a).productive) return;
  if (e.most < 0) {
    // Rounds beyond the least are all alike.
    enter(e.a, 0, push(expr, std::min(rounds + 1, least), below));
  } else if (rounds + 1 < static_cast<uint32_t>(e.most)) {
    enter(e.a, 0, push(expr, rounds + 1, below));
  } else if (rounds < static_cast<uint32_t>(e.most)) {
    enter(e.a, 0, below);
  }
}

void Matcher::enter_machine(const Expr& e, ExprId expr, uint32_t at, StackId below) {
  const Machine& machine = grammar_.machine_of(e);
  const Machine::State& state = machine.states[at];
  if (state.accepts) {
    leave(below);
  }
  for (const Machine::Edge& edge : state.edges) {
    const Machine::State& to = machine.states[static_cast<size_t>(edge.to)];
    const bool last = to.accepts && to.edges.empty();
    enter(edge.chars, 0, last ? below : push(expr, static_cast<uint32_t>(edge.to), below));
  }
}

void Matcher::advance(StackId stack, uint8_t byte) {
  if (stack == kEmpty) return;
  ++total_work_;
  const Frame frame = frames_[stack];
  const Expr& e = grammar_.expr(frame.expr);
  if (e.kind == Expr::Kind::text) {
    const std::string& text = grammar_.text_of(e);
    if (static_cast<uint8_t>(text[frame.place]) != byte) return;
    if (frame.place + 1 == text.size()) {
      leave(frame.below);
    } else {
      wait(frame.expr, frame.place + 1, frame.below);
    }
    return;
  }
  const int16_t next = grammar_.bytes_of(e).next[frame.place][byte];
  if (next == ByteDfa::kDone) {
    leave(frame.below);
  } else if (next != ByteDfa::kDead) {
    wait(frame.expr, static_cast<uint32_t>(next), frame.below);
  }
}

Matcher::StateId Matcher::state_of_found() {
  std::sort(found_.begin(), found_.end());
  found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
  work_ = 0;
  const auto it = state_ids_.find(found_);
  StateId id = kDead;
  if (it != state_ids_.end()) {
    id = it->second;
  } else {
    id = static_cast<StateId>(states_.size());
    State state;
    state.stacks = found_;
    state.ends = found_.front() == kEmpty;
    states_.push_back(std::move(state));
    state_ids_.emplace(found_, id);
    bytes_ += sizeof(State) + 2 * found_.size() * sizeof(StackId) + 64;
  }
  found_.clear();
  return id;
}

const Matcher::Row& Matcher::row(StateId id) {
  State& state = states_[id];  // a deque keeps its elements in place
  if (!state.row) {
    const int64_t before = total_work_;
    auto made = std::make_unique<Row>();
    fill_row(state.stacks, made.get());
    state.row = std::move(made);
    state.row_work = total_work_ - before;
    bytes_ += sizeof(Row);
  }
  return *state.row;
}

void Matcher::fill_row(const std::vector<StackId>& stacks, Row* row) {
  // Bytes between two cuts lead to one state.
  std::array<bool, 257> cut{};
  cut[0] = true;
  for (StackId stack : stacks) {
    if (stack == kEmpty) continue;
    const Frame& frame = frames_[stack];
    const Expr& e = grammar_.expr(frame.expr);
    if (e.kind == Expr::Kind::text) {
      const auto byte = static_cast<uint8_t>(grammar_.text_of(e)[frame.place]);
      cut[byte] = cut[byte + 1U] = true;
      continue;
    }
    const std::array<int16_t, 256>& next = grammar_.bytes_of(e).next[frame.place];
    for (size_t byte = 1; byte < 256; ++byte) {
      cut[byte] = cut[byte] || next[byte] != next[byte - 1];
    }
  }
  StateId to = kDead;
  const int64_t most = total_work_ + kMaxRowWork;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (cut[byte]) {
      if (total_work_ > most) {
        refuse_mask();
      }
      found_.clear();
      work_ = 0;
      for (StackId stack : stacks) {
        advance(stack, static_cast<uint8_t>(byte));
      }
      to = state_of_found();
    }
    (*row)[byte] = to;
  }
}

std::span<const uint32_t> Matcher::mask(StateId id) {
  int64_t work = std::numeric_limits<int64_t>::max();
  prepare_mask(id, &work);
  return states_[id].mask;
}

const Matcher::Row* Matcher::row_of_walk(StateId id, Walk* walk) {
  const Row* made = &row(id);
  if (walk->counted.size() <= id) {
    walk->counted.resize(states_.size(), false);
  }
  if (!walk->counted[id]) {
    walk->counted[id] = true;
    walk->work += states_[id].row_work;
  }
  if (walk->work > kMaxMaskWork) {
    refuse_mask();
  }
  return made;
}

bool Matcher::prepare_mask(StateId id, int64_t* work) {
  if (!states_[id].mask.empty()) return true;
  if (*work <= 0) return false;
  const int64_t begin = total_work_;
  const bool complete = walk_on(id, total_work_ + std::min(*work, kMaxWork));
  *work -= total_work_ - begin;
  return complete;
}

bool Matcher::walk_on(StateId id, int64_t most) {
  State& state = states_[id];  // a deque keeps its elements in place
  const std::vector<GrammarVocabulary::Node>& nodes = vocabulary_.nodes();
  const std::vector<int32_t>& tokens = vocabulary_.tokens();
  std::unique_ptr<Walk> owned = std::move(state.walk);  // an error ends it
  if (!owned) {
    owned = std::make_unique<Walk>();
    owned->mask.assign(vocabulary_.mask_words(), 0);
    owned->rows.assign(static_cast<size_t>(vocabulary_.max_depth()) + 1, nullptr);
    owned->rows[0] = row_of_walk(id, owned.get());
  }
  Walk& walk = *owned;
  const auto count = static_cast<uint32_t>(nodes.size() - 1);
  for (uint32_t visited = 1; walk.node < count; ++visited) {
    const uint32_t i = walk.node;
    const GrammarVocabulary::Node& node = nodes[i];
    const StateId to = (*walk.rows[node.depth - 1U])[node.byte];
    if (to == kDead) {
      walk.node = node.end;
      continue;
    }
    if (node.end > i + 1) {
      walk.rows[node.depth] = row_of_walk(to, &walk);
    }
    for (uint32_t t = node.first_token; t < nodes[i + 1].first_token; ++t) {
      const auto token = static_cast<uint32_t>(tokens[t]);
      walk.mask[token / 32] |= uint32_t{1} << (token % 32);
    }
    walk.node = i + 1;
    if (visited % kNodesPerCheck == 0) {
      total_work_ += kNodesPerCheck / kNodesPerWork;
    }
    if (total_work_ > most && walk.node < count) {
      state.walk = std::move(owned);
      return false;
    }
  }
  bytes_ += walk.mask.size() * sizeof(uint32_t);
  state.mask = std::move(walk.mask);
  return true;
}

}  // namespace hocket::serve::grammar
