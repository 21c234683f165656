// SPDX-License-Identifier: Apache-2.0
// Text form of a program. One line per kind, group, segment, buffer and task; prints and parses
// back to the same thing.
#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "program/program.h"

namespace hocket::program {

BufferKind parse_buffer_kind(std::string_view text);

namespace {

constexpr std::string_view kHeader = "hocket-program 1", kEnd = "end";

void print_types(fmt::memory_buffer& out, const std::vector<TensorType>& types) {
  for (size_t i = 0; i < types.size(); ++i)
    fmt::format_to(std::back_inserter(out), "{}{}", i ? " " : "", to_string(types[i]));
}

void print_ids(fmt::memory_buffer& out, const char* key, const std::vector<int32_t>& ids) {
  if (ids.empty()) return;
  fmt::format_to(std::back_inserter(out), " {}={}", key, fmt::join(ids, ","));
}

void print_class(fmt::memory_buffer& out, const Program& p, size_t c) {
  auto to = std::back_inserter(out);
  const RankClass& cls = p.classes[c];
  fmt::format_to(to, "class {} stage={} arena={} expected={} persistent={} workspace={}\n", cls.name,
                 cls.stage, cls.arena_bytes, cls.expected_bytes, cls.persistent_bytes,
                 cls.workspace_offset);
  for (size_t i = 0; i < cls.buffers.size(); ++i) {
    const Buffer& b = cls.buffers[i];
    fmt::format_to(to, "buffer {} {} {}", i, to_string(b.kind), to_string(b.type));
    if (b.offset != kNone) fmt::format_to(to, " at={}", b.offset);
    if (b.micro_batch != kNone) fmt::format_to(to, " mb={}", b.micro_batch);
    if (b.logical != kNone) fmt::format_to(to, " tensor={}", b.logical);
    if (b.expected_bytes != kNone) fmt::format_to(to, " expected={}", b.expected_bytes);
    if (std::string l = to_string(b.layout, p.mesh); l != "B") fmt::format_to(to, " layout=\"{}\"", l);
    if (!b.name.empty()) fmt::format_to(to, " name=\"{}\"", b.name);
    out.push_back('\n');
  }
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    const Task& t = cls.tasks[i];
    fmt::format_to(to, "task {} {} {} {} k{}", i, p.kind(t).op, to_string(t.lane),
                   to_string(t.phase), t.kind);
    if (t.micro_batch != kNone) fmt::format_to(to, " mb={}", t.micro_batch);
    fmt::format_to(to, " layer={}", t.layer);
    if (t.segment != kNone) fmt::format_to(to, " segment={}", t.segment);
    print_ids(out, "in", t.in);
    print_ids(out, "out", t.out);
    if (t.accumulate) fmt::format_to(to, " acc={}", t.accumulate);
    if (t.recompute) fmt::format_to(to, " recompute=1");
    print_ids(out, "deps", t.deps);
    if (t.group != kNone) fmt::format_to(to, " group={}", t.group);
    if (t.peer_axis != kNone) fmt::format_to(to, " axis={} peer={} tag={}", t.peer_axis, t.peer, t.tag);
    if (t.origin != kNone) fmt::format_to(to, " node={}", t.origin);
    if (i < cls.task_workspace.size() && cls.task_workspace[i] != kNone)
      fmt::format_to(to, " ws={}", cls.task_workspace[i]);
    out.push_back('\n');
  }
}

/// What is wrong with a line; parse_program adds where it stands.
struct BadLine {
  std::string why;
};

/// A line of the text, cut into words; key=value words are looked up by key.
class Line {
 public:
  explicit Line(std::string_view text) {
    while (!text.empty()) {
      size_t end = 0;
      bool quoted = false;
      while (end < text.size() && (quoted || text[end] != ' ')) quoted ^= text[end++] == '"';
      if (end > 0) words_.push_back(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }
  bool empty() const { return words_.empty(); }
  std::string_view word(size_t i) const {
    if (i >= words_.size()) bad("a word is missing");
    return words_[i];
  }
  std::string_view text(std::string_view key) const {
    for (size_t i = 1; i < words_.size(); ++i)
      if (words_[i].size() > key.size() && words_[i].substr(0, key.size()) == key &&
          words_[i][key.size()] == '=') {
        std::string_view v = words_[i].substr(key.size() + 1);
        if (v.size() >= 2 && v.front() == '"' && v.back() == '"') v = v.substr(1, v.size() - 2);
        return v;
      }
    return {};
  }
  int64_t parse(std::string_view t) const {
    int64_t v = 0;
    auto [end, ec] = std::from_chars(t.data(), t.data() + t.size(), v);
    if (ec != std::errc() || end != t.data() + t.size())
      bad(fmt::format("'{}' is not a number", t));
    return v;
  }
  int64_t integer(std::string_view key, int64_t fallback) const {
    std::string_view t = text(key);
    return t.empty() ? fallback : parse(t);
  }
  int32_t small(std::string_view key, int32_t fallback) const {
    return narrow(integer(key, fallback), key);
  }
  /// An index into something with `n` entries, or kNone.
  int32_t index(std::string_view key, size_t n) const {
    const int32_t v = small(key, kNone);
    if (v != kNone && (v < 0 || static_cast<size_t>(v) >= n))
      bad(fmt::format("{} {} does not exist (there are {})", key, v, n));
    return v;
  }
  /// Lines are numbered in order, so that a lost one does not give the others other numbers.
  void expect_number(std::string_view what, std::string_view word, size_t n) const {
    if (const int64_t v = parse(word); v != static_cast<int64_t>(n))
      bad(fmt::format("{} {} stands where {} is expected", what, v, n));
  }
  std::vector<int32_t> ids(std::string_view key) const {
    std::vector<int32_t> list;
    std::string_view t = text(key);
    while (!t.empty()) {
      size_t comma = std::min(t.find(','), t.size());
      list.push_back(narrow(parse(t.substr(0, comma)), key));
      t.remove_prefix(std::min(comma + 1, t.size()));
    }
    return list;
  }
  [[noreturn]] void bad(std::string_view why) const { throw BadLine{std::string(why)}; }

 private:
  int32_t narrow(int64_t v, std::string_view key) const {
    if (v < INT32_MIN || v > INT32_MAX) bad(fmt::format("{} is out of range: {}", key, v));
    return static_cast<int32_t>(v);
  }

  std::vector<std::string_view> words_;
};

std::vector<TensorType> parse_types(std::string_view text) {
  std::vector<TensorType> list;
  while (!text.empty()) {
    size_t end = std::min(text.find(' '), text.size());
    if (end > 0) list.push_back(graph::parse_tensor_type(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return list;
}

void want_ids(const Line& line, const std::vector<int32_t>& ids, size_t n, const char* what) {
  for (int32_t id : ids)
    if (id < 0 || static_cast<size_t>(id) >= n)
      line.bad(fmt::format("{} {} does not exist (there are {})", what, id, n));
}

void parse_kind(Program& p, const Line& line) {
  Kind k;
  if (line.word(1).substr(0, 1) != "k") line.bad("expected a kind k<n>");
  line.expect_number("kind", line.word(1).substr(1), p.kinds.size());
  k.op = line.word(2);
  k.communication = comm::find(k.op);
  k.attrs = graph::parse_attrs(line.text("attrs"));
  k.in = parse_types(line.text("in"));
  k.out = parse_types(line.text("out"));
  std::string_view flops = line.text("flops");
  auto [end, ec] = std::from_chars(flops.data(), flops.data() + flops.size(), k.flops);
  if (ec != std::errc() || end != flops.data() + flops.size()) line.bad("bad flops");
  k.bytes = line.integer("bytes", 0);
  k.workspace = line.integer("workspace", 0);
  p.kinds.push_back(std::move(k));
}

void parse_task(Program& p, RankClass& cls, const Line& line) {
  Task t;
  line.expect_number("task", line.word(1), cls.tasks.size());
  std::string_view kind = line.word(5);
  if (kind.size() < 2 || kind[0] != 'k') line.bad("expected a kind k<n>");
  t.kind = static_cast<KindId>(line.parse(kind.substr(1)));
  if (t.kind < 0 || static_cast<size_t>(t.kind) >= p.kinds.size())
    line.bad(fmt::format("kind {} does not exist", t.kind));
  if (line.word(2) != p.kind(t).op)
    line.bad(fmt::format("kind {} is {}, the task says {}", t.kind, p.kind(t).op, line.word(2)));
  t.lane = parse_lane(line.word(3));
  t.phase = parse_phase(line.word(4));
  t.micro_batch = line.small("mb", kNone);
  t.layer = line.small("layer", kNone);
  t.segment = line.index("segment", p.segments.size());
  t.in = line.ids("in");
  t.out = line.ids("out");
  t.deps = line.ids("deps");
  want_ids(line, t.in, cls.buffers.size(), "buffer");
  want_ids(line, t.out, cls.buffers.size(), "buffer");
  t.accumulate = static_cast<uint32_t>(line.integer("acc", 0));
  t.recompute = line.integer("recompute", 0) != 0;
  t.group = line.index("group", p.groups.size());
  t.peer_axis = line.index("axis", p.mesh.axes.size());
  t.peer = line.small("peer", 0);
  t.tag = line.small("tag", kNone);
  t.origin = line.small("node", kNone);
  cls.task_workspace.push_back(line.integer("ws", kNone));
  cls.tasks.push_back(std::move(t));
}

void parse_buffer(const Program& p, RankClass& cls, const Line& line) {
  line.expect_number("buffer", line.word(1), cls.buffers.size());
  Buffer b;
  b.kind = parse_buffer_kind(line.word(2));
  b.type = graph::parse_tensor_type(line.word(3));
  b.offset = line.integer("at", kNone);
  b.micro_batch = line.small("mb", kNone);
  b.logical = line.small("tensor", kNone);
  b.expected_bytes = line.integer("expected", kNone);
  b.name = line.text("name");
  if (auto l = line.text("layout"); !l.empty()) b.layout = graph::parse_layout(l, p.mesh);
  cls.buffers.push_back(std::move(b));
}

/// A line after the header.
void parse_line(Program& p, std::string_view raw) {
  if (raw.substr(0, 7) == "config ") {
    p.config = raw.substr(7);
    return;
  }
  Line line(raw);
  std::string_view what = line.word(0);
  if (what == "micro_batches") {
    const int64_t n = line.parse(line.word(1));
    if (n < 1 || n > 1 << 20) line.bad(fmt::format("micro_batches is {}; expected 1 or more", n));
    p.num_micro_batches = static_cast<int32_t>(n);
  } else if (what == "ranks_per_node") {
    const int64_t n = line.parse(line.word(1));
    if (n < 1 || n > 1 << 20) line.bad(fmt::format("ranks_per_node is {}; expected 1 or more", n));
    p.ranks_per_node = static_cast<int32_t>(n);
  } else if (what == "axis") {
    int64_t size = line.parse(line.word(2));
    if (size < 1 || size > (1 << 20) / p.mesh.size() || p.mesh.axes.size() >= graph::kMaxAxes)
      line.bad("bad axis");
    if (!p.classes.empty()) line.bad("comes after a class");
    p.mesh.axes.push_back({std::string(line.word(1)), static_cast<int32_t>(size)});
  } else if (what == "kind") {
    std::string fixed(raw);
    // Inner quotes of attributes were written as '.
    size_t begin = fixed.find("attrs=\""), end = fixed.find("\" in=\"");
    if (begin == fixed.npos || end == fixed.npos) line.bad("expected attrs, in and out");
    std::string attrs = fixed.substr(begin + 7, end - begin - 7);
    for (char& ch : attrs)
      if (ch == '\'') ch = '"';
    fixed.erase(begin, end + 1 - begin);
    parse_kind(p, Line(fixed));
    p.kinds.back().attrs = graph::parse_attrs(attrs);
  } else if (what == "group") {
    line.expect_number("group", line.word(1), p.groups.size());
    Group g{line.ids("axes"), line.ids("members")};
    want_ids(line, g.axes, p.mesh.axes.size(), "axis");
    p.groups.push_back(std::move(g));
  } else if (what == "segment") {
    line.expect_number("segment", line.word(1), p.segments.size());
    p.segments.push_back({std::string(line.word(2))});
  } else if (what == "class") {
    RankClass cls;
    cls.name = line.word(1);
    cls.stage = line.small("stage", 0);
    cls.arena_bytes = line.integer("arena", 0);
    cls.expected_bytes = line.integer("expected", cls.arena_bytes);
    cls.persistent_bytes = line.integer("persistent", 0);
    cls.workspace_offset = line.integer("workspace", kNone);
    p.classes.push_back(std::move(cls));
  } else if (what == "buffer" || what == "task") {
    if (p.classes.empty()) line.bad("comes before any class");
    if (what == "task") parse_task(p, p.classes.back(), line);
    else parse_buffer(p, p.classes.back(), line);
  } else {
    line.bad(fmt::format("unknown line '{}'", what));
  }
}

}  // namespace

std::string print(const Program& p, int32_t only_class) {
  fmt::memory_buffer out;
  auto to = std::back_inserter(out);
  fmt::format_to(to, "{}\n", kHeader);
  if (!p.config.empty()) fmt::format_to(to, "config {}\n", p.config);
  fmt::format_to(to, "micro_batches {}\n", p.num_micro_batches);
  if (p.ranks_per_node > 0) fmt::format_to(to, "ranks_per_node {}\n", p.ranks_per_node);
  for (const auto& a : p.mesh.axes) fmt::format_to(to, "axis {} {}\n", a.name, a.size);
  for (size_t i = 0; i < p.kinds.size(); ++i) {
    const Kind& k = p.kinds[i];
    fmt::format_to(to, "kind k{} {} attrs=\"", i, k.op);
    // Strings inside attributes are quoted with ' so that the whole stays one word.
    std::string attrs = to_string(k.attrs);
    for (char& ch : attrs)
      if (ch == '"') ch = '\'';
    fmt::format_to(to, "{}\" in=\"", attrs);
    print_types(out, k.in);
    fmt::format_to(to, "\" out=\"");
    print_types(out, k.out);
    fmt::format_to(to, "\" flops={} bytes={} workspace={}\n", k.flops, k.bytes, k.workspace);
  }
  for (size_t i = 0; i < p.groups.size(); ++i) {
    fmt::format_to(to, "group {}", i);
    print_ids(out, "axes", p.groups[i].axes);
    print_ids(out, "members", p.groups[i].members);
    out.push_back('\n');
  }
  for (size_t i = 0; i < p.segments.size(); ++i)
    fmt::format_to(to, "segment {} {}\n", i, p.segments[i].name);
  for (size_t c = 0; c < p.classes.size(); ++c)
    if (only_class == kNone || only_class == static_cast<int32_t>(c)) print_class(out, p, c);
  fmt::format_to(to, "{}\n", kEnd);
  return fmt::to_string(out);
}

Program parse_program(std::string_view text, const std::string& where) {
  Program p;
  size_t number = 0;
  bool header = false, ended = false;
  while (!text.empty()) {
    size_t eol = std::min(text.find('\n'), text.size());
    std::string_view raw = text.substr(0, eol);
    text.remove_prefix(std::min(eol + 1, text.size()));
    ++number;
    if (raw.empty() || raw[0] == '#') continue;
    std::string why;
    try {
      if (!header && raw != kHeader)
        throw BadLine{fmt::format("got '{}'; expected '{}'", raw.substr(0, 40), kHeader)};
      if (ended) throw BadLine{fmt::format("comes after '{}'", kEnd)};
      if (!header) header = true;
      else if (raw == kEnd) ended = true;
      else parse_line(p, raw);
      continue;
    } catch (const BadLine& e) {
      why = e.why;
    } catch (const Error& e) {
      why = e.what();
    }
    if (text.empty())
      why += fmt::format("; the text is cut off here: its last line is not '{}'", kEnd);
    fail(where, "line {}: {}", number, why);
  }
  if (!header) fail(where, "the text is empty; expected '{}'", kHeader);
  if (!ended)
    fail(where, "the text is cut off after line {}; expected '{}' as its last line", number, kEnd);
  const int32_t stages = p.mesh.extent("pp");
  if (static_cast<int32_t>(p.classes.size()) != stages)
    fail(where, "got {} classes; expected {}, one per pipeline stage", p.classes.size(), stages);
  return p;
}

std::string to_dot(const Program& program, int32_t c) {
  const RankClass& cls = program.classes[static_cast<size_t>(c)];
  std::string out = "digraph program {\n  rankdir=LR; node [shape=box, fontname=\"monospace\"];\n";
  std::vector<TaskId> writer(cls.buffers.size(), kNone);
  std::vector<TaskId> last(kNumLanes, kNone);
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    const Task& t = cls.tasks[i];
    const char* colour = t.lane == Lane::compute ? "#dbeafe" : "#fde68a";
    out += fmt::format("  t{} [label=\"{}\\n{}\", style=filled, fillcolor=\"{}\"];\n", i,
                       task_name(program, c, static_cast<TaskId>(i)), to_string(t.lane), colour);
    TaskId& prev = last[static_cast<size_t>(t.lane)];
    if (prev != kNone) out += fmt::format("  t{} -> t{} [style=dotted];\n", prev, i);
    prev = static_cast<TaskId>(i);
    for (BufferId b : t.in)
      if (TaskId w = writer[static_cast<size_t>(b)]; w != kNone)
        out += fmt::format("  t{} -> t{} [label=\"b{}\"];\n", w, i, b);
    for (TaskId d : t.deps) out += fmt::format("  t{} -> t{} [color=red];\n", d, i);
    for (BufferId b : t.out) writer[static_cast<size_t>(b)] = static_cast<TaskId>(i);
  }
  return out + "}\n";
}

}  // namespace hocket::program
