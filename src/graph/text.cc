// SPDX-License-Identifier: Apache-2.0
// Implements: print, parse_graph (graph.h). The text form: one line per tensor and node, which
// parses back to an equal graph:
//   symbol 0 bound=64 expected=1 name="tokens"
//   tensor 3 param f32[64,8] layer=0 init=normal:0.02 name="model.layers.0.mlp.down_proj.weight"
//   node 7 linear forward layer=0 in=2,3 out=9 attrs={k=2}
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "graph/graph.h"

namespace hocket::graph {
namespace {

constexpr std::string_view kHeader = "hocket-graph 1";
constexpr const char* kInitNames[] = {"none", "normal", "constant", "copy", "uniform"};

/// The total that needs no word: of one contribution itself, of several none.
TensorId only_contribution(const ParamGrad& grad) {
  return grad.contributions.size() == 1 ? grad.contributions[0] : kNone;
}

void print_ids(fmt::memory_buffer& out, const char* key, const std::vector<int32_t>& ids) {
  if (!ids.empty()) {
    fmt::format_to(std::back_inserter(out), " {}={}", key, fmt::join(ids, ","));
  }
}

/// `key=value` words of a line, quotes removed; `attrs=` and `name=` take the rest of the line.
class Line {
 public:
  Line(std::string_view text, size_t number) : number_(number) {
    while (!text.empty()) {
      size_t end = std::min(text.find(' '), text.size());
      if (text.starts_with("attrs=") || text.starts_with("name=")) {
        end = text.size();
      }
      if (end > 0) {
        words_.push_back(text.substr(0, end));
      }
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }
  std::string_view word(size_t i) const {
    if (i >= words_.size()) {
      bad("a word is missing");
    }
    return words_[i];
  }
  size_t size() const { return words_.size(); }
  std::string_view text(std::string_view key) const {
    for (std::string_view word : words_) {
      if (word.size() > key.size() && word.starts_with(key) && word[key.size()] == '=') {
        return word.substr(key.size() + 1);
      }
    }
    return {};
  }
  std::string quoted(std::string_view key) const {
    const std::string_view value = text(key);
    std::string plain;
    if (value.size() < 2 || value.front() != '"' || value.back() != '"' ||
        !unescape(value.substr(1, value.size() - 2), &plain)) {
      bad(fmt::format("expected {}=\"…\"", key));
    }
    return plain;
  }
  template <typename T>
  T parse(std::string_view text) const {
    T value{};
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (ec != std::errc() || end != text.data() + text.size()) {
      bad(fmt::format("'{}' is no number", text));
    }
    return value;
  }
  template <typename T = int32_t>
  T integer(std::string_view key, T otherwise) const {
    const std::string_view value = text(key);
    return value.empty() ? otherwise : parse<T>(value);
  }
  /// Comma-separated ids, each in [0, limit).
  std::vector<int32_t> ids(std::string_view text, size_t limit) const {
    std::vector<int32_t> list;
    while (!text.empty()) {
      const size_t comma = std::min(text.find(','), text.size());
      list.push_back(parse<int32_t>(text.substr(0, comma)));
      if (list.back() < 0 || static_cast<size_t>(list.back()) >= limit) {
        bad(fmt::format("{} does not exist (there are {})", list.back(), limit));
      }
      text.remove_prefix(std::min(comma + 1, text.size()));
    }
    return list;
  }
  [[noreturn]] void bad(std::string_view why) const {
    fail("graph text", "line {}: {}", number_, why);
  }

 private:
  std::vector<std::string_view> words_;
  size_t number_;
};

template <typename T>
T parse_name(const Line& line, std::string_view text, const char* (*name)(T), int count) {
  for (int i = 0; i < count; ++i) {
    if (text == name(static_cast<T>(i))) return static_cast<T>(i);
  }
  line.bad(fmt::format("unknown word '{}'", text));
}

void parse_symbol(Graph& graph, const Line& line) {
  Symbol symbol;
  symbol.name = line.quoted("name");
  symbol.bound = line.integer<int64_t>("bound", 1);
  symbol.expected = line.integer("expected", symbol.bound);
  symbol.divisor = line.integer<int64_t>("divisor", 1);
  graph.symbol(std::move(symbol));
}

void parse_tensor(Graph& graph, const Line& line) {
  Tensor tensor;
  tensor.kind = parse_name<TensorKind>(line, line.word(2), to_string, 4);
  tensor.type = parse_tensor_type(line.word(3));
  if (const std::string why = symbols_differ(tensor.type, graph.symbols); !why.empty()) {
    line.bad(why);
  }
  tensor.name = line.quoted("name");
  tensor.producer = line.integer("by", kNone);
  tensor.layer = line.integer("layer", kNone);
  tensor.per_step = line.integer("per_step", 0) != 0;
  tensor.whole = line.integer("whole", 0) != 0;
  tensor.expert = line.integer("expert", 0) != 0;
  tensor.trained = line.integer("frozen", 0) == 0;
  tensor.of = line.integer("of", kNone);
  if (tensor.of != kNone &&
      (tensor.of < 0 || std::cmp_greater_equal(tensor.of, graph.tensors.size()) ||
       graph.tensor(tensor.of).kind != TensorKind::param)) {
    line.bad("of names no parameter before this line");
  }
  if (const std::string_view state = line.text("state"); !state.empty()) {
    tensor.state = parse_name<StateKind>(line, state, to_string, 3);
  }
  if (std::string_view init = line.text("init"); !init.empty()) {
    const size_t colon = std::min(init.find(':'), init.size() - 1);
    const auto* found =
        std::find(std::begin(kInitNames), std::end(kInitNames), init.substr(0, colon));
    if (found == std::end(kInitNames)) {
      line.bad("init is none of normal:<std>, uniform:<bound>, constant:<value>, copy:0");
    }
    tensor.init.kind = static_cast<Init::Kind>(found - std::begin(kInitNames));
    tensor.init.value = line.parse<double>(init.substr(colon + 1));
    if (tensor.init.kind == Init::Kind::copy && tensor.of == kNone) {
      line.bad("init is a copy; expected of=<parameter>");
    }
  }
  graph.tensors.push_back(std::move(tensor));
}

void parse_node(Graph& graph, const Line& line) {
  Node node;
  node.op = line.word(2);
  node.phase = parse_name<Phase>(line, line.word(3), to_string, 3);
  node.layer = line.integer("layer", kNone);
  node.in = line.ids(line.text("in"), graph.tensors.size());
  node.out = line.ids(line.text("out"), graph.tensors.size());
  node.accumulate = OutputSet::of_bits(line.integer<uint32_t>("acc", 0));
  node.recompute = line.integer("recompute", 0) != 0;
  if (std::string_view attrs = line.text("attrs"); !attrs.empty()) {
    node.attrs = parse_attrs(attrs);
  }
  graph.nodes.push_back(std::move(node));
}

}  // namespace

std::string print(const Graph& graph) {
  // One line per tensor and node, without default values, so that a diff of two graphs is minimal.
  // parse_graph() reads it back.
  fmt::memory_buffer out;
  auto to = std::back_inserter(out);
  fmt::format_to(to, "{}\ngraph layers={} name=\"{}\"\n", kHeader, graph.num_layers,
                 escape(graph.name, "\""));
  for (size_t i = 0; i < graph.symbols.size(); ++i) {
    fmt::format_to(to, "symbol {} {}\n", i, to_string(graph.symbols[i]));
  }
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const Tensor& tensor = graph.tensors[i];
    fmt::format_to(to, "tensor {} {} {}", i, to_string(tensor.kind), to_string(tensor.type));
    if (tensor.producer != kNone) {
      fmt::format_to(to, " by={}", tensor.producer);
    }
    if (tensor.layer != kNone) {
      fmt::format_to(to, " layer={}", tensor.layer);
    }
    if (tensor.per_step) {
      fmt::format_to(to, " per_step=1");
    }
    if (tensor.whole) {
      fmt::format_to(to, " whole=1");
    }
    if (tensor.expert) {
      fmt::format_to(to, " expert=1");
    }
    if (!tensor.trained) {
      fmt::format_to(to, " frozen=1");
    }
    if (tensor.state != StateKind::none) {
      fmt::format_to(to, " state={}", to_string(tensor.state));
    }
    if (tensor.of != kNone) {
      fmt::format_to(to, " of={}", tensor.of);
    }
    if (tensor.init.kind != Init::Kind::none) {
      fmt::format_to(to, " init={}:{}", kInitNames[static_cast<int>(tensor.init.kind)],
                     tensor.init.value);
    }
    fmt::format_to(to, " name=\"{}\"\n", escape(tensor.name, "\""));
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    fmt::format_to(to, "node {} {} {}", i, node.op, to_string(node.phase));
    if (node.layer != kNone) {
      fmt::format_to(to, " layer={}", node.layer);
    }
    print_ids(out, "in", node.in);
    print_ids(out, "out", node.out);
    if (!node.accumulate.empty()) {
      fmt::format_to(to, " acc={}", node.accumulate.bits());
    }
    if (node.recompute) {
      fmt::format_to(to, " recompute=1");
    }
    if (!node.attrs.empty()) {
      fmt::format_to(to, " attrs={}", to_string(node.attrs));
    }
    out.push_back('\n');
  }
  if (!graph.losses.empty()) {
    fmt::format_to(to, "losses {}\n", fmt::join(graph.losses, ","));
  }
  if (!graph.outputs.empty()) {
    fmt::format_to(to, "outputs {}\n", fmt::join(graph.outputs, ","));
  }
  for (const ParamGrad& grad : graph.grads) {
    fmt::format_to(to, "grad {} {}", grad.param, fmt::join(grad.contributions, ","));
    if (grad.total != only_contribution(grad)) {
      fmt::format_to(to, " total={}", grad.total);
    }
    out.push_back('\n');
  }
  return fmt::to_string(out);
}

Graph parse_graph(std::string_view text) {
  // Reads the header, then symbols, tensors and nodes, numbered from 0 so that ids are positions; a
  // line may refer only to earlier ones. The last loop checks the one forward reference, from a
  // tensor to its producer.
  Graph graph;
  size_t number = 0;
  bool header = false;
  while (!text.empty()) {
    const size_t eol = std::min(text.find('\n'), text.size());
    const std::string_view raw = text.substr(0, eol);
    text.remove_prefix(std::min(eol + 1, text.size()));
    ++number;
    if (raw.empty() || raw[0] == '#') continue;
    if (!header) {
      if (raw != kHeader) {
        fail("graph text", "line {}: got '{}'; expected '{}'", number, raw.substr(0, 40), kHeader);
      }
      header = true;
      continue;
    }
    const Line line(raw, number);
    const std::string_view what = line.word(0);
    const auto in_order = [&](size_t next) {
      if (line.parse<uint32_t>(line.word(1)) != next) {
        line.bad(fmt::format("expected number {}", next));
      }
    };
    if (what == "graph") {
      graph.num_layers = line.integer("layers", 0);
      graph.name = line.quoted("name");
    } else if (what == "symbol") {
      in_order(graph.symbols.size());
      parse_symbol(graph, line);
    } else if (what == "tensor") {
      in_order(graph.tensors.size());
      parse_tensor(graph, line);
    } else if (what == "node") {
      in_order(graph.nodes.size());
      parse_node(graph, line);
    } else if (what == "losses") {
      graph.losses = line.ids(line.word(1), graph.tensors.size());
    } else if (what == "outputs") {
      graph.outputs = line.ids(line.word(1), graph.tensors.size());
    } else if (what == "grad") {
      const auto param = line.ids(line.word(1), graph.tensors.size());
      if (param.size() != 1) {
        line.bad("expected one parameter");
      }
      graph.grads.push_back({param[0], line.ids(line.word(2), graph.tensors.size())});
      const auto total = line.ids(line.text("total"), graph.tensors.size());
      if (total.size() > 1) {
        line.bad("expected one total");
      }
      graph.grads.back().total = total.empty() ? only_contribution(graph.grads.back()) : total[0];
    } else {
      line.bad(fmt::format("unknown line '{}'", what.substr(0, 40)));
    }
  }
  if (!header) fail("graph text", "the text is empty; expected '{}'", kHeader);
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.producer < kNone || tensor.producer >= static_cast<NodeId>(graph.nodes.size())) {
      fail("graph text", "tensor '{}' is written by node {}, which does not exist", tensor.name,
           tensor.producer);
    }
  }
  return graph;
}

std::string to_dot(const Graph& graph) {
  // An edge per use of a node's output, with its type; a tensor without a producer (parameters,
  // inputs) is an ellipse, drawn at its first use.
  constexpr const char* kColours[] = {"#dbeafe", "#fee2e2", "#dcfce7"};
  std::string out =
      "digraph graph_of_model {\n  rankdir=TB; node [shape=box, fontname=\"monospace\"];\n";
  std::vector<bool> shown(graph.tensors.size(), false);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const std::string place = layer_name(node.layer, graph.num_layers);
    out += fmt::format("  n{} [label=\"{}{}\", style=filled, fillcolor=\"{}\"];\n", i, node.op,
                       place.empty() ? "" : " " + place, kColours[place_of(node.phase)]);
    for (TensorId id : node.in) {
      const Tensor& tensor = graph.tensor(id);
      if (tensor.producer != kNone && tensor.producer != static_cast<NodeId>(i)) {
        out += fmt::format("  n{} -> n{} [label=\"{}\"];\n", tensor.producer, i,
                           to_string(tensor.type));
        continue;
      }
      if (!shown[id]) {
        out += fmt::format("  t{} [label=\"{}\\n{}\", shape=ellipse];\n", id, tensor.name,
                           to_string(tensor.type));
      }
      shown[id] = true;
      out += fmt::format("  t{} -> n{};\n", id, i);
    }
  }
  return out + "}\n";
}

}  // namespace hocket::graph
