// SPDX-License-Identifier: Apache-2.0
// A grammar run as a pushdown automaton over the bytes of a text. A state is the set of stacks that
// the text so far allows; states, their transitions and their masks of tokens are made when they
// are first needed, and kept.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "serve/grammar/grammar.h"
#include "serve/grammar/vocabulary.h"

namespace hocket::serve::grammar {

/// One thread at a time.
class Matcher {
 public:
  /// Requires: both outlive it, and the grammar is finished.
  Matcher(const Grammar& grammar, const GrammarVocabulary& vocabulary);

  using StateId = uint32_t;
  static constexpr StateId kDead = 0;  ///< no text of the grammar begins so

  StateId start() const { return start_; }
  /// Throws Error (kRun) where the text can be read in too many ways at once.
  StateId step(StateId state, uint8_t byte) { return row(state)[byte]; }
  StateId step(StateId state, std::string_view bytes);
  /// The state behind a whole text, without keeping those before it.
  StateId read(std::string_view text);
  bool may_end(StateId state) const { return states_[state].ends; }
  /// Tokens that may come next, as bits; mask_words() of the vocabulary. Valid until clear().
  /// Throws Error (kRun) where the mask takes more than kMaxMaskWork, whatever is cached of it.
  std::span<const uint32_t> mask(StateId state);
  /// Makes a part of the mask, and takes its work off `work`, which may fall somewhat below 0; then
  /// nothing is done. Returns whether the mask is complete; throws Error as mask() does.
  bool prepare_mask(StateId state, int64_t* work);

  /// Bounds of the work of one mask, some 0.6 s, and of the part of it that is made at once.
  static constexpr int64_t kMaxMaskWork = 8'000'000, kMaxRowWork = 1'000'000;
  /// Work so far: stacks advanced by a byte, and expressions entered.
  int64_t work() const { return total_work_; }

  size_t bytes() const { return bytes_; }  ///< of memory that clear() gives back
  size_t states() const { return states_.size(); }
  /// Forgets all states but makes start() anew: ids from before are invalid.
  void clear();

 private:
  using StackId = uint32_t;
  static constexpr StackId kEmpty = 0;  // the stack of a whole text

  /// The top of a stack: an expression, and a place in it. `place`, by the expression: the number
  /// of bytes read of a text; the state of an automaton; the next part of a sequence; the rounds of
  /// a repetition.
  struct Frame {
    ExprId expr;
    uint32_t place;
    StackId below;
    bool operator==(const Frame&) const = default;
  };
  struct FrameHash {
    size_t operator()(const Frame& frame) const;
  };
  using Row = std::array<StateId, 256>;
  /// A mask in the making: a walk over the vocabulary's tree.
  struct Walk {
    std::vector<uint32_t> mask;
    std::vector<const Row*> rows;  // of the states from the root down to the present node
    uint32_t node = 0;             // the next one
    std::vector<bool> counted;     // by state: its row's work is among `work`
    int64_t work = 0;
  };
  struct State {
    std::vector<StackId> stacks;  // sorted; each waits for a byte
    bool ends = false;
    std::unique_ptr<Row> row;
    int64_t row_work = 0;
    std::unique_ptr<Walk> walk;  // null: not begun, or over
    std::vector<uint32_t> mask;
  };
  struct StacksHash {
    size_t operator()(const std::vector<StackId>& stacks) const;
  };

  const Row& row(StateId state);
  void fill_row(const std::vector<StackId>& stacks, Row* row);
  /// Goes on with a mask's walk until total_work_ is above `most`. Returns whether it is complete.
  bool walk_on(StateId state, int64_t most);
  /// Returns the row of a state that a mask's walk comes to, and counts its work.
  const Row* row_of_walk(StateId state, Walk* walk);
  StackId push(ExprId expr, uint32_t place, StackId below);
  /// Adds the stacks, each waiting for a byte, that an expression on a stack stands for.
  void enter(ExprId expr, uint32_t place, StackId below);
  void enter_repeat(const Expr& e, ExprId expr, uint32_t rounds, StackId below);
  void enter_machine(const Expr& e, ExprId expr, uint32_t state, StackId below);
  /// The same of a stack whose top is done.
  void leave(StackId below);
  /// Adds the stacks behind one byte.
  void advance(StackId stack, uint8_t byte);
  void wait(ExprId expr, uint32_t place, StackId below) { add(push(expr, place, below)); }
  void add(StackId stack);
  StateId state_of_found();

  const Grammar& grammar_;
  const GrammarVocabulary& vocabulary_;
  std::vector<Frame> frames_;  // by stack
  std::unordered_map<Frame, StackId, FrameHash> stack_ids_;
  std::deque<State> states_;
  std::unordered_map<std::vector<StackId>, StateId, StacksHash> state_ids_;
  StateId start_ = kDead;
  std::vector<StackId> found_;  // of the state in the making
  int64_t work_ = 0;            // for it
  int64_t total_work_ = 0;
  size_t bytes_ = 0;
};

}  // namespace hocket::serve::grammar
