// SPDX-License-Identifier: Apache-2.0
// Differences of programs and graphs. Ids of buffers, tensors and kinds shift with every rewrite. A
// task is therefore compared by its identity (program::identity): all fields that are no positions.
// The order is compared by the shortest edit script (Myers, "An O(ND) Difference Algorithm and Its
// Variations", Algorithmica 1, 1986).
#include "cli/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "graph/graph.h"
#include "program/memory.h"
#include "program/program.h"

namespace hocket::cli {
namespace {

/// A figure of a listing, as people read it and exactly.
struct Fact {
  std::string name;
  std::string shown;
  std::string exact;
  bool often_nothing = false;  ///< not worth a line where both have none
};
Fact number(std::string name, size_t n) {
  return {std::move(name), std::to_string(n), std::to_string(n)};
}

/// A list of tasks (one rank class) or nodes, ready to be compared.
struct Listing {
  std::string name;                ///< "stage 0"
  std::string counted = "kinds";   ///< unit of `kinds`
  std::vector<std::string> kinds;  ///< op and types of each entry, and buffers
  std::vector<std::string> lines;  ///< per entry, in order: all that identifies it
  std::vector<Fact> facts;
};

/// Adds every field of the class's own line, except addresses and the listing's name.
void add_facts(const program::Program& program, const program::RankClass& cls,
               std::vector<Fact>* facts) {
  program::for_each_field<program::RankClass>(
      [&]<class Value>(const program::Field& field, Value program::RankClass::*member) {
        const Value& value = cls.*member;
        if constexpr (std::is_same_v<Value, int64_t>) {
          if (field.is_address) return;
          facts->push_back({field.name, human_bytes(static_cast<double>(value)),
                            std::to_string(value), !field.is_always});
        } else if constexpr (std::is_same_v<Value, program::RoleId>) {
          facts->push_back({field.name, program.roles[value].name, program.roles[value].name});
        } else if constexpr (std::is_same_v<Value, program::Box>) {
          const std::string text = to_string(value, program.roles[cls.role].mesh);
          facts->push_back({field.name, text.empty() ? "all ranks" : text, text});
        } else {
          static_assert(program::kIsList<Value> || std::is_same_v<Value, std::string>);
        }
      });
}

/// A listing per class of ranks: its kinds and buffers are compared as sets, its tasks in order.
/// Names stand for numbers, since a single new task would shift all that follow.
std::vector<Listing> list(const program::Program& program) {
  std::vector<std::string> kinds;
  for (const program::Kind& kind : program.kinds) {
    kinds.push_back(program::identity(program, kind));
  }
  const std::vector<program::Memory> memory = program::memory_of(program);
  std::vector<Listing> result;
  for (const program::RankClass& cls : program.classes) {
    Listing l;
    const program::ClassId id = result.size();
    l.name = program::stage_name(cls);
    l.counted = "kinds and buffers";
    size_t deps = 0;
    for (const program::Task& task : cls.tasks) {
      l.kinds.push_back(kinds[task.kind]);
      l.lines.push_back(program::identity(program, id, task));
      deps += task.deps.size() + task.part_deps.size();
    }
    for (const program::Buffer& b : cls.buffers) {
      l.kinds.push_back("buffer " + program::identity(program, id, b));
    }
    l.facts = {number("tasks", cls.tasks.size()), number("buffers", cls.buffers.size()),
               number("dependencies between lanes", deps)};
    add_facts(program, cls, &l.facts);
    const program::Memory& m = memory[id];
    l.facts.push_back({"memory per rank",
                       fmt::format("{} ({})", human_bytes(static_cast<double>(m.total())),
                                   program::parts_text(m)),
                       std::to_string(m.total())});
    result.push_back(std::move(l));
  }
  return result;
}

/// The figures of the whole program: micro-batches, roles and their meshes.
std::string figures(const program::Program& program) {
  std::string text;
  program::for_each_field<program::Program>([&](const program::Field& field, auto member) {
    const auto& value = program.*member;
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, std::vector<program::Role>>) {
      for (const program::Role& role : value) {
        text += fmt::format(" {} {} {}", field.name, role.name, to_string(role.mesh));
      }
    } else if constexpr (std::is_same_v<Value, std::vector<program::Symbol>>) {
      for (const program::Symbol& symbol : value) {
        text += fmt::format(" {} {}", field.name, to_string(symbol));
      }
    } else if constexpr (std::is_integral_v<Value>) {
      text += fmt::format(" {} {}", field.name, value);
    }
  });
  return text.substr(1);
}

std::string types_of(const std::vector<graph::TensorType>& in,
                     const std::vector<graph::TensorType>& out) {
  std::string text = "(";
  for (const auto& type : in) {
    text += (text.size() > 1 ? ", " : "") + to_string(type);
  }
  text += ") ->";
  for (const auto& type : out) {
    text += " " + to_string(type);
  }
  return text;
}

std::vector<Listing> list(const graph::Graph& g) {
  Listing l;
  l.name = "graph";
  for (const graph::Node& node : g.nodes) {
    std::vector<graph::TensorType> in, out;
    std::string names;
    for (auto id : node.in) {
      in.push_back(g.tensor(id).type), names += " " + g.tensor(id).name;
    }
    for (auto id : node.out) {
      out.push_back(g.tensor(id).type);
    }
    const std::string kind =
        fmt::format("{}{} {}", node.op, to_string(node.attrs), types_of(in, out));
    l.kinds.push_back(kind);
    const std::string place = graph::layer_name(node.layer, g.num_layers);
    l.lines.push_back(fmt::format(
        "{} {} {}{}{} of{}", kind, to_string(node.phase), place.empty() ? "every stage" : place,
        node.recompute ? " recompute" : "", node.accumulate.empty() ? "" : " +=", names));
  }
  l.facts = {number("nodes", g.nodes.size()), number("tensors", g.tensors.size()),
             number("parameters with a gradient", g.grads.size())};
  return {std::move(l)};
}

/// Entries of `a` that were taken away (-) and of `b` that were added (+), in order.
struct Edit {
  char sign;
  size_t index;
};

/// Myers' greedy algorithm, up to `most` edits; nothing if there are more.
std::vector<Edit> shortest_edits(const std::vector<int>& a, const std::vector<int>& b, int most,
                                 bool* complete) {
  const int n = static_cast<int>(a.size()), m = static_cast<int>(b.size());
  const int limit = std::min(most, n + m);
  std::vector<int> v(static_cast<size_t>(2 * limit + 3), 0);
  auto at = [&](std::vector<int>& x, int k) -> int& { return x[k + limit + 1]; };
  std::vector<std::vector<int>> trace;
  int d = 0;
  bool found = false;
  for (; d <= limit && !found; ++d) {
    trace.push_back(v);
    for (int k = -d; k <= d; k += 2) {
      int x = k == -d || (k != d && at(v, k - 1) < at(v, k + 1)) ? at(v, k + 1) : at(v, k - 1) + 1;
      while (x < n && x - k < m && a[x] == b[x - k]) {
        ++x;
      }
      at(v, k) = x;
      if (x >= n && x - k >= m) {
        found = true;
        break;
      }
    }
  }
  *complete = found;
  std::vector<Edit> edits;
  if (!found) return edits;
  int x = n, y = m;
  for (int step = d - 1; step > 0; --step) {
    std::vector<int>& u = trace[step];
    const int k = x - y;
    const bool down = k == -step || (k != step && at(u, k - 1) < at(u, k + 1));
    const int from = down ? k + 1 : k - 1;
    const int px = at(u, from), py = px - from;
    edits.push_back(down ? Edit{'+', static_cast<size_t>(py)} : Edit{'-', static_cast<size_t>(px)});
    x = px;
    y = py;
  }
  std::reverse(edits.begin(), edits.end());
  return edits;
}

std::string diff_listing(const Listing& a, const Listing& b, size_t limit) {
  std::string out = a.name + (a.name == b.name ? "" : " -> " + b.name) + "\n";
  std::map<std::string, std::pair<int64_t, int64_t>> count;
  for (const std::string& text : a.kinds) {
    ++count[text].first;
  }
  for (const std::string& text : b.kinds) {
    ++count[text].second;
  }
  std::erase_if(count, [](const auto& c) { return c.second.first == c.second.second; });

  bool same = a.name == b.name && a.lines == b.lines && count.empty();
  for (size_t i = 0; i < a.facts.size(); ++i) {
    const Fact &x = a.facts[i], &y = b.facts[i];
    if (x.often_nothing && x.exact == "0" && y.exact == "0") continue;
    out += fmt::format("  {:<28}{}", x.name, x.shown);
    if (x.exact != y.exact) {
      out += x.shown != y.shown ? " -> " + y.shown : fmt::format(": {} -> {}", x.exact, y.exact);
    }
    out += "\n";
    same &= x.exact == y.exact;
  }
  if (same) return out + "  no difference\n";

  if (!count.empty()) {
    out += fmt::format("  {} ({:>+} means added)\n", a.counted, 1);
  }
  size_t shown = 0;
  for (const auto& [kind, n] : count) {
    if (++shown > limit) {
      out += fmt::format("  … and {} more\n", count.size() - limit);
      break;
    }
    out += fmt::format("  {:>+6}  {} ({} -> {})\n", n.second - n.first, kind, n.first, n.second);
  }

  std::unordered_map<std::string, int> ids;
  auto number = [&](const std::vector<std::string>& lines) {
    std::vector<int> v;
    for (const std::string& text : lines) {
      v.push_back(ids.emplace(text, static_cast<int>(ids.size())).first->second);
    }
    return v;
  };
  const std::vector<int> x = number(a.lines), y = number(b.lines);
  bool complete = false;
  // The trace of the algorithm takes edits squared integers.
  const std::vector<Edit> edits = shortest_edits(x, y, 2000, &complete);
  if (!complete) return out + "  more than 2,000 differences in order: the tasks are not listed\n";
  if (edits.empty()) return out;
  out += "  in order\n";
  for (size_t i = 0; i < edits.size(); ++i) {
    if (i == limit) {
      out += fmt::format("  … and {} more\n", edits.size() - limit);
      break;
    }
    const Edit& e = edits[i];
    out += fmt::format("  {} {:>6}  {}\n", e.sign, e.index,
                       e.sign == '-' ? a.lines[e.index] : b.lines[e.index]);
  }
  return out;
}

}  // namespace

std::string diff_texts(const std::string& a_name, const std::string& a, const std::string& b_name,
                       const std::string& b, size_t limit) {
  // A graph is one listing, a program one per class of ranks; listings are compared in pairs, and
  // classes that only one of the programs has are named.
  auto is_program = [](const std::string& name, const std::string& text) {
    if (text.rfind("hocket-program", 0) == 0) return true;
    if (text.rfind("hocket-graph", 0) == 0) return false;
    fail(name, "is neither the text of a program nor of a graph; try: hocket graph RUN --out {}",
         name);
  };
  const bool programs = is_program(a_name, a);
  if (programs != is_program(b_name, b)) {
    fail("hocket graph --diff", "one is a program, the other a graph; expected two of a kind");
  }
  std::string out = fmt::format("- {}\n+ {}\n", a_name, b_name);
  std::vector<Listing> x, y;
  if (programs) {
    const program::Program program = program::parse_program(a, a_name);
    const program::Program q = program::parse_program(b, b_name);
    if (figures(program) != figures(q)) {
      out += fmt::format("- {}\n+ {}\n", figures(program), figures(q));
    }
    x = list(program);
    y = list(q);
  } else {
    x = list(graph::parse_graph(a));
    y = list(graph::parse_graph(b));
  }
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    out += diff_listing(x[i], y[i], limit);
  }
  for (size_t i = y.size(); i < x.size(); ++i) {
    out += fmt::format("- {}: {} tasks\n", x[i].name, x[i].lines.size());
  }
  for (size_t i = x.size(); i < y.size(); ++i) {
    out += fmt::format("+ {}: {} tasks\n", y[i].name, y[i].lines.size());
  }
  return out;
}

}  // namespace hocket::cli
