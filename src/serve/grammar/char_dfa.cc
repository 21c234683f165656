// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar/char_dfa.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/utf8.h"

namespace hocket::serve::grammar {
namespace {

constexpr uint32_t kLastCodePoint = 0x10FFFF;
constexpr uint32_t kFirstSurrogate = 0xD800, kAfterSurrogates = 0xE000;

/// Returns the beginnings of classes that the boundaries divide the code points into.
std::vector<uint32_t> class_begins(std::vector<uint32_t> boundaries) {
  boundaries.insert(boundaries.end(), {0, kFirstSurrogate, kAfterSurrogates});
  std::sort(boundaries.begin(), boundaries.end());
  boundaries.erase(std::unique(boundaries.begin(), boundaries.end()), boundaries.end());
  while (boundaries.back() > kLastCodePoint) {
    boundaries.pop_back();
  }
  return boundaries;
}

int32_t class_of(const std::vector<uint32_t>& begins, uint32_t code_point) {
  const auto after = std::upper_bound(begins.begin(), begins.end(), code_point);
  return static_cast<int32_t>(after - begins.begin()) - 1;
}

/// Removes states from which nothing is accepted. State 0 stays the start.
CharDfa trimmed(CharDfa dfa) {
  const int32_t classes = dfa.classes(), count = dfa.states();
  std::vector<std::vector<int32_t>> before(static_cast<size_t>(count));
  std::vector<int32_t> useful;
  std::vector<uint8_t> is_useful(static_cast<size_t>(count), 0);
  for (int32_t s = 0; s < count; ++s) {
    int32_t last = -1;
    for (int32_t c = 0; c < classes; ++c) {
      const int32_t to = dfa.next[static_cast<size_t>(s * classes + c)];
      if (to >= 0 && to != last) {
        before[static_cast<size_t>(to)].push_back(s);
      }
      last = to;
    }
    if (dfa.accepts[static_cast<size_t>(s)]) {
      is_useful[static_cast<size_t>(s)] = 1;
      useful.push_back(s);
    }
  }
  for (size_t i = 0; i < useful.size(); ++i) {
    for (int32_t s : before[static_cast<size_t>(useful[i])]) {
      if (is_useful[static_cast<size_t>(s)]) continue;
      is_useful[static_cast<size_t>(s)] = 1;
      useful.push_back(s);
    }
  }
  CharDfa out;
  out.begins = dfa.begins;
  if (count == 0 || !is_useful[0]) return out;
  std::vector<int32_t> number(static_cast<size_t>(count), -1);
  int32_t kept = 0;
  for (int32_t s = 0; s < count; ++s) {
    if (is_useful[static_cast<size_t>(s)]) {
      number[static_cast<size_t>(s)] = kept++;
    }
  }
  for (int32_t s = 0; s < count; ++s) {
    if (!is_useful[static_cast<size_t>(s)]) continue;
    out.accepts.push_back(dfa.accepts[static_cast<size_t>(s)]);
    for (int32_t c = 0; c < classes; ++c) {
      const int32_t to = dfa.next[static_cast<size_t>(s * classes + c)];
      out.next.push_back(to < 0 ? -1 : number[static_cast<size_t>(to)]);
    }
  }
  return out;
}

}  // namespace

CodeSet code_set(std::vector<CodeRange> ranges) {
  std::vector<CodeRange> cut;
  for (CodeRange r : ranges) {
    r.last = std::min(r.last, kLastCodePoint);
    if (r.first < kFirstSurrogate && r.first <= r.last) {
      cut.push_back({r.first, std::min(r.last, kFirstSurrogate - 1)});
    }
    if (r.last >= kAfterSurrogates && r.first <= r.last) {
      cut.push_back({std::max(r.first, kAfterSurrogates), r.last});
    }
  }
  std::sort(cut.begin(), cut.end());
  CodeSet out;
  for (const CodeRange& r : cut) {
    if (!out.empty() && r.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, r.last);
    } else {
      out.push_back(r);
    }
  }
  return out;
}

CodeSet code_complement(const CodeSet& set) {
  std::vector<CodeRange> out;
  uint32_t at = 0;
  for (const CodeRange& r : set) {
    if (r.first > at) {
      out.push_back({at, r.first - 1});
    }
    at = r.last + 1;
  }
  if (at <= kLastCodePoint) {
    out.push_back({at, kLastCodePoint});
  }
  return code_set(std::move(out));
}

int32_t CharDfa::step(int32_t state, uint32_t code_point) const {
  if (code_point > kLastCodePoint) return -1;
  return next[static_cast<size_t>(state * classes() + class_of(begins, code_point))];
}

bool CharDfa::matches(std::string_view text) const {
  if (empty()) return false;
  int32_t state = 0;
  for (size_t at = 0; at < text.size();) {
    const int length = utf8_length(text, at);
    if (length == 0) return false;
    state = step(state, utf8_code_point(text, at, length));
    if (state < 0) return false;
    at += static_cast<size_t>(length);
  }
  return accepts[static_cast<size_t>(state)] != 0;
}

CodeSet CharDfa::between(int32_t from, int32_t to) const {
  std::vector<CodeRange> ranges;
  for (int32_t c = 0; c < classes(); ++c) {
    if (next[static_cast<size_t>(from * classes() + c)] != to) continue;
    const uint32_t end =
        c + 1 < classes() ? begins[static_cast<size_t>(c) + 1] - 1 : kLastCodePoint;
    ranges.push_back({begins[static_cast<size_t>(c)], end});
  }
  return code_set(std::move(ranges));
}

std::optional<CharDfa> dfa_of_texts(const std::vector<std::string>& texts) {
  std::vector<std::vector<uint32_t>> points;
  std::vector<uint32_t> boundaries;
  for (const std::string& text : texts) {
    std::vector<uint32_t> chars;
    size_t at = 0;
    for (int length = 1; at < text.size() && length > 0; at += static_cast<size_t>(length)) {
      length = utf8_length(text, at);
      if (length == 0) break;
      chars.push_back(utf8_code_point(text, at, length));
      boundaries.insert(boundaries.end(), {chars.back(), chars.back() + 1});
    }
    if (at < text.size()) continue;  // no text of characters
    points.push_back(std::move(chars));
  }
  CharDfa dfa;
  dfa.begins = class_begins(std::move(boundaries));
  const auto classes = static_cast<size_t>(dfa.classes());
  const auto add = [&] {
    dfa.next.resize(dfa.next.size() + classes, -1);
    dfa.accepts.push_back(0);
    return dfa.states() - 1;
  };
  add();
  for (const std::vector<uint32_t>& chars : points) {
    if (dfa.next.size() > kMaxDfaEdges || dfa.states() > kMaxDfaStates) return std::nullopt;
    int32_t at = 0;
    for (uint32_t c : chars) {
      const size_t edge =
          static_cast<size_t>(at) * classes + static_cast<size_t>(class_of(dfa.begins, c));
      if (dfa.next[edge] < 0) {
        const int32_t made = add();
        dfa.next[edge] = made;
      }
      at = dfa.next[edge];
    }
    dfa.accepts[static_cast<size_t>(at)] = 1;
  }
  return trimmed(std::move(dfa));
}

std::optional<CharDfa> dfa_of_lengths(int64_t least, int64_t most) {
  const int64_t last = most < 0 ? least : most;
  if (last >= kMaxDfaStates) return std::nullopt;
  CharDfa dfa;
  dfa.begins = class_begins({});
  const int32_t surrogates = class_of(dfa.begins, kFirstSurrogate);
  for (int64_t n = 0; n <= last; ++n) {
    dfa.accepts.push_back(n >= least);
    const int64_t to = n < last ? n + 1 : most < 0 ? n : -1;
    for (int32_t c = 0; c < dfa.classes(); ++c) {
      dfa.next.push_back(c == surrogates ? -1 : static_cast<int32_t>(to));
    }
  }
  return trimmed(std::move(dfa));
}

CharDfa dfa_of_multiples(int32_t divisor) {
  CharDfa dfa;
  dfa.begins = class_begins({'-', '-' + 1, '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', ':'});
  const auto classes = static_cast<size_t>(dfa.classes());
  // States: the start, behind the sign, then by remainder.
  dfa.next.assign(classes * static_cast<size_t>(divisor + 2), -1);
  dfa.accepts.assign(static_cast<size_t>(divisor + 2), 0);
  dfa.accepts[2] = 1;
  dfa.next[static_cast<size_t>(class_of(dfa.begins, '-'))] = 1;
  for (int32_t s = 0; s < divisor + 2; ++s) {
    const int64_t remainder = std::max(s - 2, 0);
    for (uint32_t digit = 0; digit < 10; ++digit) {
      const auto to = static_cast<int32_t>((remainder * 10 + digit) % divisor) + 2;
      dfa.next[static_cast<size_t>(s) * classes +
               static_cast<size_t>(class_of(dfa.begins, '0' + digit))] = to;
    }
  }
  return trimmed(std::move(dfa));
}

std::optional<CharDfa> dfa_combine(const CharDfa& a, const CharDfa& b, DfaOp op) {
  CharDfa dfa;
  std::vector<uint32_t> boundaries = a.begins;
  boundaries.insert(boundaries.end(), b.begins.begin(), b.begins.end());
  dfa.begins = class_begins(std::move(boundaries));
  std::vector<std::pair<int32_t, int32_t>> classes;
  for (uint32_t begin : dfa.begins) {
    classes.emplace_back(a.begins.empty() ? -1 : class_of(a.begins, begin),
                         b.begins.empty() ? -1 : class_of(b.begins, begin));
  }
  using Pair = std::pair<int32_t, int32_t>;
  std::map<Pair, int32_t> ids;
  std::vector<Pair> pairs;
  const auto id_of = [&](Pair pair) {
    const bool dead = op == DfaOp::both         ? pair.first < 0 || pair.second < 0
                      : op == DfaOp::first_only ? pair.first < 0
                                                : pair.first < 0 && pair.second < 0;
    if (dead) return -1;
    const auto [it, made] = ids.emplace(pair, static_cast<int32_t>(pairs.size()));
    if (made) {
      pairs.push_back(pair);
    }
    return it->second;
  };
  const auto step = [](const CharDfa& of, int32_t state, int32_t c) {
    return state < 0 ? -1 : of.next[static_cast<size_t>(state * of.classes() + c)];
  };
  id_of({a.empty() ? -1 : 0, b.empty() ? -1 : 0});
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs.size() > kMaxDfaStates || dfa.next.size() > kMaxDfaEdges) return std::nullopt;
    const Pair at = pairs[i];
    const bool in_a = at.first >= 0 && a.accepts[static_cast<size_t>(at.first)];
    const bool in_b = at.second >= 0 && b.accepts[static_cast<size_t>(at.second)];
    dfa.accepts.push_back(op == DfaOp::both     ? in_a && in_b
                          : op == DfaOp::either ? in_a || in_b
                                                : in_a && !in_b);
    for (const auto& [class_a, class_b] : classes) {
      dfa.next.push_back(id_of({step(a, at.first, class_a), step(b, at.second, class_b)}));
    }
  }
  return trimmed(std::move(dfa));
}

int32_t CharNfa::add_state() {
  states_.emplace_back();
  return states() - 1;
}

void CharNfa::add_edge(int32_t from, CodeSet set, int32_t to) {
  states_[static_cast<size_t>(from)].edges.push_back({std::move(set), to});
}

void CharNfa::add_empty(int32_t from, int32_t to, When when) {
  states_[static_cast<size_t>(from)].empties.push_back({to, when});
}

/// The subset construction.
class Determiniser {
 public:
  Determiniser(const CharNfa& nfa, int32_t final)
      : nfa_(nfa), final_(final), seen_(nfa.states_.size(), 0) {
    std::vector<uint32_t> boundaries;
    for (const CharNfa::State& state : nfa.states_) {
      for (const CharNfa::Edge& edge : state.edges) {
        for (const CodeRange& r : edge.set) {
          boundaries.insert(boundaries.end(), {r.first, r.last + 1});
        }
      }
    }
    dfa_.begins = class_begins(std::move(boundaries));
    const CodeSet every = code_complement({});
    for (const CharNfa::Edge& edge : nfa.states_[static_cast<size_t>(final)].edges) {
      accepts_rest_ = accepts_rest_ || (edge.to == final && edge.set == every);
    }
  }

  std::optional<CharDfa> run(int32_t start) {
    add(closure({start}, /*begin=*/true, /*end=*/false));
    const auto classes = static_cast<size_t>(dfa_.classes());
    for (size_t i = 0; i < sets_.size(); ++i) {
      const bool large = sets_.size() > kMaxDfaStates || dfa_.next.size() > kMaxDfaEdges;
      if (large || work_ > kMaxWork) return std::nullopt;
      const std::vector<int32_t> set = sets_[i];
      const std::vector<int32_t> at_end = closure(set, i == 0, /*end=*/true);
      dfa_.accepts.push_back(std::binary_search(at_end.begin(), at_end.end(), final_));
      std::vector<std::vector<int32_t>> targets(classes);
      for (int32_t s : set) {
        for (const CharNfa::Edge& edge : nfa_.states_[static_cast<size_t>(s)].edges) {
          for (const CodeRange& r : edge.set) {
            const int32_t last = class_of(dfa_.begins, r.last);
            for (int32_t c = class_of(dfa_.begins, r.first); c <= last; ++c) {
              targets[static_cast<size_t>(c)].push_back(edge.to);
              ++work_;
            }
          }
        }
      }
      for (std::vector<int32_t>& to : targets) {
        dfa_.next.push_back(to.empty() ? -1 : add(closure(std::move(to), false, false)));
      }
      work_ += static_cast<int64_t>(classes);
    }
    return trimmed(std::move(dfa_));
  }

 private:
  static constexpr int64_t kMaxWork = 30'000'000;  // some 0.3 s

  int32_t add(std::vector<int32_t> set) {
    // The set before the first character is a state of its own: some edges are open only there.
    if (!sets_.empty()) {
      const auto [it, made] = ids_.emplace(set, static_cast<int32_t>(sets_.size()));
      if (!made) return it->second;
    }
    sets_.push_back(std::move(set));
    return static_cast<int32_t>(sets_.size()) - 1;
  }

  std::vector<int32_t> closure(std::vector<int32_t> set, bool begin, bool end) {
    ++round_;
    std::vector<int32_t> out;
    const auto visit = [&](int32_t s) {
      if (seen_[static_cast<size_t>(s)] == round_) return;
      seen_[static_cast<size_t>(s)] = round_;
      out.push_back(s);
    };
    for (int32_t s : set) {
      visit(s);
    }
    for (size_t i = 0; i < out.size(); ++i) {
      ++work_;
      for (const CharNfa::Empty& edge : nfa_.states_[static_cast<size_t>(out[i])].empties) {
        ++work_;
        if (edge.when == CharNfa::When::at_begin && !begin) continue;
        if (edge.when == CharNfa::When::at_end && !end) continue;
        visit(edge.to);
      }
    }
    if (accepts_rest_ && seen_[static_cast<size_t>(final_)] == round_) return {final_};
    std::sort(out.begin(), out.end());
    return out;
  }

  const CharNfa& nfa_;
  int32_t final_;
  bool accepts_rest_ = false;  // whatever follows the final state is accepted
  CharDfa dfa_;
  std::vector<std::vector<int32_t>> sets_;
  std::map<std::vector<int32_t>, int32_t> ids_;
  std::vector<int32_t> seen_;  // by state: the last round that visited it
  int32_t round_ = 0;
  int64_t work_ = 0;
};

std::optional<CharDfa> CharNfa::determinise(int32_t start, int32_t final) const {
  return Determiniser(*this, final).run(start);
}

}  // namespace hocket::serve::grammar
