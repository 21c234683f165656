// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar/grammar.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace hocket::serve::grammar {
namespace {

/// Bytes of numbers, for the keys of expressions.
class KeyWriter {
 public:
  explicit KeyWriter(char kind) : key_(1, kind) {}
  KeyWriter& add(uint64_t value) {
    for (int i = 0; i < 8; ++i) {
      key_.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
    }
    return *this;
  }
  KeyWriter& add(std::string_view text) {
    key_ += text;
    return *this;
  }
  std::string take() { return std::move(key_); }

 private:
  std::string key_;
};

/// Parents of each expression, for the marks of productive ones.
class ProductiveMarks {
 public:
  ProductiveMarks(const Grammar& grammar, std::vector<Expr>* exprs,
                  const std::vector<ExprId>& rules)
      : grammar_(grammar),
        exprs_(*exprs),
        rules_(rules),
        parents_(exprs->size()),
        missing_(exprs->size(), 0) {}

  void run() {
    for (ExprId id = 0; id < exprs_.size(); ++id) {
      start(id);
    }
    while (!found_.empty()) {
      const ExprId id = found_.back();
      found_.pop_back();
      for (ExprId parent : parents_[id]) {
        if (exprs_[parent].productive) continue;
        const bool all = exprs_[parent].kind == Expr::Kind::sequence;
        if (!all || --missing_[parent] == 0) {
          mark(parent);
        }
      }
    }
  }

 private:
  void mark(ExprId id) {
    exprs_[id].productive = true;
    found_.push_back(id);
  }

  void start(ExprId id) {
    const Expr& e = exprs_[id];
    switch (e.kind) {
      case Expr::Kind::text:
      case Expr::Kind::bytes:
        mark(id);
        break;
      case Expr::Kind::machine:
        if (!grammar_.machine_of(e).states.empty()) {
          mark(id);
        }
        break;
      case Expr::Kind::sequence:
      case Expr::Kind::choice:
        for (ExprId child : grammar_.list_of(e)) {
          parents_[child].push_back(id);
        }
        missing_[id] = grammar_.list_of(e).size();
        if (e.kind == Expr::Kind::sequence && missing_[id] == 0) {
          mark(id);
        }
        break;
      case Expr::Kind::repeat:
        if (e.least == 0) {
          mark(id);
        } else {
          parents_[e.a].push_back(id);
        }
        break;
      case Expr::Kind::call:
        parents_[rules_[e.a]].push_back(id);
        break;
    }
  }

  const Grammar& grammar_;
  std::vector<Expr>& exprs_;
  const std::vector<ExprId>& rules_;
  std::vector<std::vector<ExprId>> parents_;
  std::vector<size_t> missing_;  // by sequence: parts that are not productive yet
  std::vector<ExprId> found_;
};

}  // namespace

ExprId Grammar::intern(Expr expr, std::string key) {
  const auto [it, made] = ids_.emplace(std::move(key), static_cast<ExprId>(exprs_.size()));
  if (made) {
    exprs_.push_back(expr);
  }
  return it->second;
}

ExprId Grammar::text(std::string_view bytes) {
  if (bytes.empty()) return sequence({});
  std::string key = KeyWriter('t').add(bytes).take();
  if (const auto it = ids_.find(key); it != ids_.end()) return it->second;
  texts_.emplace_back(bytes);
  return intern({Expr::Kind::text, false, static_cast<uint32_t>(texts_.size() - 1)},
                std::move(key));
}

ExprId Grammar::add_bytes(ByteDfa dfa, std::string key) {
  byte_dfas_.push_back(std::move(dfa));
  return intern({Expr::Kind::bytes, false, static_cast<uint32_t>(byte_dfas_.size() - 1)},
                std::move(key));
}

ExprId Grammar::one_of(std::string_view bytes) {
  std::string key = KeyWriter('o').add(bytes).take();
  if (const auto it = ids_.find(key); it != ids_.end()) return it->second;
  std::vector<BytePath> paths;
  for (char c : bytes) {
    paths.push_back({{static_cast<uint8_t>(c), static_cast<uint8_t>(c)}});
  }
  return add_bytes(byte_dfa(paths), std::move(key));
}

ExprId Grammar::chars(const CodeSet& set) {
  HOCKET_CHECK(!set.empty(), "an empty set of characters");
  KeyWriter writer('c');
  for (const CodeRange& r : set) {
    writer.add(r.first).add(r.last);
  }
  std::string key = writer.take();
  if (const auto it = ids_.find(key); it != ids_.end()) return it->second;
  return add_bytes(byte_dfa(char_paths(set)), std::move(key));
}

ExprId Grammar::any_char() {
  std::string key = "any";
  if (const auto it = ids_.find(key); it != ids_.end()) return it->second;
  return add_bytes(byte_dfa(any_char_paths()), std::move(key));
}

ExprId Grammar::add_machine(Machine machine) {
  KeyWriter writer('m');
  for (const Machine::State& state : machine.states) {
    writer.add(state.accepts ? 1 : 0).add(state.edges.size());
    for (const Machine::Edge& edge : state.edges) {
      writer.add(edge.chars).add(static_cast<uint64_t>(edge.to));
    }
  }
  std::string key = writer.take();
  if (const auto it = ids_.find(key); it != ids_.end()) return it->second;
  machines_.push_back(std::move(machine));
  return intern({Expr::Kind::machine, false, static_cast<uint32_t>(machines_.size() - 1)},
                std::move(key));
}

ExprId Grammar::dfa(const CharDfa& dfa) {
  Machine machine;
  for (int32_t s = 0; s < dfa.states(); ++s) {
    Machine::State state{dfa.accepts[static_cast<size_t>(s)] != 0};
    std::map<int32_t, std::vector<CodeRange>> sets;  // by the state that they lead to
    for (int32_t c = 0; c < dfa.classes(); ++c) {
      const int32_t to = dfa.next[static_cast<size_t>(s * dfa.classes() + c)];
      const uint32_t last =
          c + 1 < dfa.classes() ? dfa.begins[static_cast<size_t>(c) + 1] - 1 : 0x10FFFF;
      if (to >= 0) {
        sets[to].push_back({dfa.begins[static_cast<size_t>(c)], last});
      }
    }
    for (auto& [to, ranges] : sets) {
      state.edges.push_back({chars(code_set(std::move(ranges))), to});
    }
    machine.states.push_back(std::move(state));
  }
  return add_machine(std::move(machine));
}

ExprId Grammar::texts(std::vector<std::string> texts) {
  Machine machine;
  if (!texts.empty()) {
    machine.states.emplace_back();
  }
  std::map<std::pair<int32_t, uint32_t>, int32_t> next;
  for (const std::string& text : texts) {
    int32_t at = 0;
    for (size_t i = 0; i < text.size();) {
      const int length = utf8_length(text, i);
      HOCKET_CHECK(length > 0, "a text that is not UTF-8");
      const uint32_t c = utf8_code_point(text, i, length);
      const auto [it, made] =
          next.emplace(std::make_pair(at, c), static_cast<int32_t>(machine.states.size()));
      if (made) {
        machine.states.emplace_back();
        machine.states[static_cast<size_t>(at)].edges.push_back({chars({{c, c}}), it->second});
      }
      at = it->second;
      i += static_cast<size_t>(length);
    }
    machine.states[static_cast<size_t>(at)].accepts = true;
  }
  return add_machine(std::move(machine));
}

ExprId Grammar::sequence(std::vector<ExprId> parts) {
  if (parts.size() == 1) return parts[0];
  KeyWriter writer('s');
  for (ExprId part : parts) {
    writer.add(part);
  }
  std::string key = writer.take();
  if (const auto it = ids_.find(key); it != ids_.end()) return it->second;
  lists_.push_back(std::move(parts));
  return intern({Expr::Kind::sequence, false, static_cast<uint32_t>(lists_.size() - 1)},
                std::move(key));
}

ExprId Grammar::choice(std::vector<ExprId> parts) {
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  if (parts.size() == 1) return parts[0];
  KeyWriter writer('|');
  for (ExprId part : parts) {
    writer.add(part);
  }
  std::string key = writer.take();
  if (const auto it = ids_.find(key); it != ids_.end()) return it->second;
  lists_.push_back(std::move(parts));
  return intern({Expr::Kind::choice, false, static_cast<uint32_t>(lists_.size() - 1)},
                std::move(key));
}

ExprId Grammar::repeat(ExprId part, int64_t least, int64_t most) {
  HOCKET_CHECK(least >= 0 && (most < 0 || least <= most) &&
                   std::max(least, most) <= std::numeric_limits<int32_t>::max(),
               "counts {} to {}", least, most);
  if (most == 0) return sequence({});
  if (least == 1 && most == 1) return part;
  std::string key = KeyWriter('r')
                        .add(part)
                        .add(static_cast<uint64_t>(least))
                        .add(static_cast<uint64_t>(most))
                        .take();
  return intern({Expr::Kind::repeat, false, part, static_cast<int32_t>(least),
                 most < 0 ? -1 : static_cast<int32_t>(most)},
                std::move(key));
}

RuleId Grammar::add_rule() {
  rules_.push_back(std::numeric_limits<ExprId>::max());
  return static_cast<RuleId>(rules_.size() - 1);
}

void Grammar::set_rule(RuleId rule, ExprId body) { rules_[rule] = body; }

ExprId Grammar::call(RuleId rule) {
  return intern({Expr::Kind::call, false, rule}, KeyWriter('(').add(rule).take());
}

void Grammar::finish(ExprId root) {
  root_ = root;
  for (ExprId body : rules_) {
    HOCKET_CHECK(body < exprs_.size(), "a rule without a body");
  }
  ProductiveMarks(*this, &exprs_, rules_).run();
  std::unordered_map<std::string, ExprId>().swap(ids_);
}

size_t Grammar::memory_bytes() const {
  size_t total = exprs_.capacity() * sizeof(Expr) + rules_.capacity() * sizeof(ExprId);
  for (const std::string& text : texts_) {
    total += sizeof text + text.capacity();
  }
  for (const ByteDfa& dfa : byte_dfas_) {
    total += sizeof dfa + dfa.next.capacity() * sizeof dfa.next[0];
  }
  for (const Machine& machine : machines_) {
    total += sizeof machine;
    for (const Machine::State& state : machine.states) {
      total += sizeof state + state.edges.capacity() * sizeof(Machine::Edge);
    }
  }
  for (const std::vector<ExprId>& list : lists_) {
    total += sizeof list + list.capacity() * sizeof(ExprId);
  }
  return total;
}

}  // namespace hocket::serve::grammar
