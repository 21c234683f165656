// SPDX-License-Identifier: Apache-2.0
#include "whatif/chakra_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "trace/chrome_events.h"
#include "trace/json_stream.h"

namespace hocket::whatif {
namespace {

constexpr std::string_view kTypeNames[] = {"INVALID_NODE",   "METADATA_NODE",  "MEM_LOAD_NODE",
                                           "MEM_STORE_NODE", "COMP_NODE",      "COMM_SEND_NODE",
                                           "COMM_RECV_NODE", "COMM_COLL_NODE", "STORAGE_NODE",
                                           "BATCH_NODE",     "CHECKPOINT_NODE"};
constexpr size_t kLargestMessage = size_t{64} << 20;

void set_type(int64_t number, ChakraNode* node) {
  const bool known = number >= 0 && number < std::ssize(kTypeNames);
  node->type = known ? static_cast<ChakraType>(number) : ChakraType::invalid;
  node->unknown_type = known ? "" : fmt::format("{}", number);
}
void set_type(const std::string& text, ChakraNode* node) {
  int64_t number = 0;
  if (parse_int(text, &number)) return set_type(number, node);
  const auto* const at = std::find(std::begin(kTypeNames), std::end(kTypeNames), text);
  if (at != std::end(kTypeNames)) return set_type(at - std::begin(kTypeNames), node);
  node->type = ChakraType::invalid;
  node->unknown_type = text;
}

/// Content of an attribute, in either form of the file.
struct Attribute {
  std::string name, text;
  double number = 0;
  bool is_number = false;
  bool some_false = false;  ///< a list of bools with at least one false
};

void set_start(double micros, ChakraNode* node) {
  node->started = trace::is_possible_time(micros);
  node->start = node->started ? micros * 1e-6 : 0;
}
void set_duration(double micros, ChakraNode* node) {
  node->timed = trace::is_possible_time(micros);
  node->negative = node->timed && micros < 0;
  node->duration = node->timed && !node->negative ? micros * 1e-6 : 0;
}
double size_of(double number) { return number > 0 && number < 1e24 ? number : 0; }
int64_t integer_of(double number) {
  return std::fabs(number) < 1e15 ? static_cast<int64_t>(number) : kNone;
}

void apply(const Attribute& attribute, ChakraNode* node) {
  const std::string& name = attribute.name;
  if (name == "pg_name" || name == "comm_group") {
    node->group = attribute.text.empty() ? fmt::format("{}", attribute.number) : attribute.text;
  } else if (name == "involved_dim") {
    node->some_dims = attribute.some_false;
  } else if (!attribute.is_number) {
    return;
  } else if (name == "comm_src") {
    node->source = integer_of(attribute.number);
  } else if (name == "comm_dst") {
    node->target = integer_of(attribute.number);
  } else if (name == "comm_tag") {
    node->tag = integer_of(attribute.number);
  } else if (name == "comm_type") {
    node->comm_type = integer_of(attribute.number);
  } else if (name == "comm_size") {
    node->comm_bytes = size_of(attribute.number);
  } else if (name == "num_ops") {
    node->num_ops = size_of(attribute.number);
  } else if (name == "tensor_size") {
    node->tensor_bytes = size_of(attribute.number);
  } else if (name == "is_cpu_op") {
    node->on_device = attribute.number == 0;
  } else if (name == "ts" && !node->started) {
    set_start(attribute.number, node);
  } else if (name == "runtime" && !node->timed) {
    set_duration(attribute.number, node);
  }
}

// ---- protobuf ----

/// Fields of a message, one at a time.
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view bytes) : rest_(bytes) {}

  /// Reads the next field. Returns false at the end, and where the bytes are no message (then not
  /// is_whole()).
  bool next() {
    uint64_t key = 0;
    if (rest_.empty() || broken_) return false;
    broken_ = !varint(&key) || key >> 3 == 0 || key >> 3 > (1 << 29) - 1;
    if (broken_) return false;
    number = key >> 3;
    type = key & 7;
    value = 0;
    bytes = {};
    if (type == 0) {
      broken_ = !varint(&value);
    } else if (type == 1 || type == 5) {
      broken_ = !fixed(type == 1 ? 8 : 4);
    } else if (type == 2) {
      uint64_t size = 0;
      broken_ = !varint(&size) || size > rest_.size();
      if (!broken_) {
        bytes = rest_.substr(0, size);
        rest_.remove_prefix(size);
      }
    } else {
      broken_ = true;
    }
    return !broken_;
  }
  bool is_whole() const { return !broken_; }
  /// Returns the value of an int32, int64 or sfixed64.
  int64_t integer() const { return static_cast<int64_t>(value); }

  int number = 0, type = 0;
  uint64_t value = 0;      ///< of a varint, or the bits of a fixed number
  std::string_view bytes;  ///< of a message, text or packed list

  bool varint(uint64_t* out) {
    *out = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      *out |= uint64_t{byte & 127u} << shift;
      if (byte < 128) return true;
    }
    return false;
  }
  bool is_empty() const { return rest_.empty(); }

 private:
  bool fixed(size_t size) {
    if (rest_.size() < size) return false;
    for (size_t i = 0; i < size; ++i) {
      value |= uint64_t{static_cast<unsigned char>(rest_[i])} << (8 * i);
    }
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
  bool broken_ = false;
};

/// Parses an AttributeProto. The i-th kind of single value has the field number 3 + 2 i, and its
/// list the next one.
bool parse_attribute(std::string_view bytes, Attribute* out) {
  ProtobufReader reader(bytes);
  while (reader.next()) {
    const auto number = [&](double value) {
      out->number = std::isfinite(value) ? value : 0;
      out->is_number = std::isfinite(value);
    };
    const auto low = static_cast<uint32_t>(reader.value);
    switch (reader.number) {
      case 1:
        out->name = reader.bytes;
        break;
      case 3:  // double
        number(std::bit_cast<double>(reader.value));
        break;
      case 5:  // float
        number(std::bit_cast<float>(low));
        break;
      case 7:   // int32
      case 9:   // int64
      case 25:  // sfixed64
        number(reader.integer());
        break;
      case 11:  // uint32
      case 13:  // uint64
      case 19:  // fixed32
      case 21:  // fixed64
      case 27:  // bool
        number(reader.value);
        break;
      case 15:  // sint32, in zigzag order: 0, -1, 1, -2 ..
      case 17:  // sint64, likewise
        number(static_cast<int64_t>(reader.value >> 1 ^ -(reader.value & 1)));
        break;
      case 23:  // sfixed32
        number(static_cast<int32_t>(low));
        break;
      case 28: {  // BoolList: packed, or one by one
        ProtobufReader list(reader.bytes);
        while (list.next()) {
          const bool one = list.type == 0 && list.value == 0;
          out->some_false = out->some_false || one || list.bytes.find('\0') != list.bytes.npos;
        }
        break;
      }
      case 29:  // string
      case 31:  // bytes
        out->text = reader.bytes;
        break;
      default:
        break;
    }
  }
  return reader.is_whole();
}

/// Parses packed ids, or one of them.
bool parse_ids(const ProtobufReader& field, std::vector<int64_t>* out) {
  if (field.type == 0) {
    out->push_back(field.integer());
    return true;
  }
  ProtobufReader list(field.bytes);
  while (!list.is_empty()) {
    uint64_t id = 0;
    if (field.type != 2 || !list.varint(&id)) return false;
    out->push_back(id);
  }
  return field.type == 2;
}

/// Parses a protobuf Node. Returns false if `bytes` is none. Protobuf leaves zeros out: the id of a
/// first node, or a duration.
bool parse_node(std::string_view bytes, ChakraNode* node) {
  ProtobufReader reader(bytes);
  node->id = 0;
  bool good = true;
  std::vector<std::string_view> attributes;
  while (good && reader.next()) {
    switch (reader.number) {
      case 1:
        good = reader.type == 0;
        node->id = reader.integer();
        break;
      case 2:
        good = reader.type == 2 && is_utf8(reader.bytes);
        node->name = reader.bytes;
        break;
      case 3:
        good = reader.type == 0;
        set_type(reader.integer(), node);
        break;
      case 4:
        good = parse_ids(reader, &node->controls);
        break;
      case 5:
        good = parse_ids(reader, &node->waits);
        break;
      case 6:
        good = reader.type == 0;
        set_start(reader.value, node);
        break;
      case 7:
        good = reader.type == 0;
        set_duration(reader.value, node);
        break;
      case 10:
        good = reader.type == 2;
        attributes.push_back(reader.bytes);
        break;
      default:
        break;
    }
  }
  for (const std::string_view text : attributes) {
    Attribute attribute;
    good = good && parse_attribute(text, &attribute);
    apply(attribute, node);
  }
  return good && reader.is_whole() && !(node->name.empty() && node->type == ChakraType::invalid);
}

/// Returns whether `bytes` is GlobalMetadata: a version and attributes, in older files attributes
/// alone.
bool is_metadata(std::string_view bytes) {
  ProtobufReader reader(bytes);
  while (reader.next()) {
    if (reader.type != 2 || reader.number > 2) return false;
  }
  return reader.is_whole();
}

/// Reads a message with its length before it. Returns nothing at the end. Sets `*cut` if the file
/// ended within it.
std::optional<std::string> read_message(trace::TextSource* source, bool* cut) {
  uint64_t size = 0;
  for (int shift = 0;; shift += 7) {
    const int byte = source->get();
    *cut = (byte < 0 && shift > 0) || shift > 28;
    if (byte < 0 || *cut) return {};
    size |= uint64_t{byte & 127u} << shift;
    if (byte < 128) break;
  }
  *cut = size > kLargestMessage;
  std::string message;
  while (!*cut && message.size() < size) {
    const std::string_view view = source->view().substr(0, size - message.size());
    *cut = view.empty();
    message += view;
    source->skip(view.size());
  }
  return *cut ? std::nullopt : std::optional(std::move(message));
}

// ---- JSON ----

/// Reads {"name": "comm_dst", "int32Val": 3}.
void json_attribute(trace::JsonStream& json, ChakraNode* node) {
  Attribute out;
  json.object([&](std::string_view key) {
    if (key == "name" && json.next() == '"') {
      json.string(&out.name);
    } else if (json.next() == '"' && (key == "stringVal" || key == "string_val")) {
      json.string(&out.text);
    } else if (key == "boolVal" || key == "bool_val") {
      out.number = json.token() == "true" ? 1 : 0;
      out.is_number = true;
    } else if ((key == "boolList" || key == "bool_list") && json.next() == '{') {
      json.object([&](std::string_view) {
        if (json.next() != '[') return json.skip_value();
        json.array([&] {
          if (json.next() == '{' || json.next() == '[' || json.next() == '"') {
            return json.skip_value();
          }
          out.some_false = json.token() == "false" || out.some_false;
        });
      });
    } else {
      out.is_number = json.number(&out.number) || out.is_number;
    }
  });
  apply(out, node);
}

/// Reads one key of a node. Accepts both protobuf spellings, and Chakra's own JSON, with attributes
/// as keys.
void json_member(std::string_view key, trace::JsonStream& json, ChakraNode* node) {
  double number = 0;
  if (key == "id" || key == "Id") {
    node->id = json.integer();
  } else if ((key == "name" || key == "Name") && json.next() == '"') {
    json.string(&node->name);
  } else if (key == "type" || key == "NodeType") {
    if (json.next() == '{' || json.next() == '[') return json.skip_value();
    set_type(json.next() == '"' ? json.string() : json.token(), node);
  } else if (key == "ctrl_deps" || key == "ctrlDeps" || key == "data_deps" || key == "dataDeps") {
    if (json.next() != '[') return json.skip_value();
    std::vector<int64_t>& ids = key.starts_with("ctrl") ? node->controls : node->waits;
    json.array([&] { ids.push_back(json.integer()); });
  } else if (key == "start_time_micros" || key == "startTimeMicros") {
    if (json.number(&number)) {
      set_start(number, node);
    }
  } else if (key == "duration_micros" || key == "durationMicros" || key == "runtime") {
    if (json.number(&number)) {
      set_duration(number, node);
    }
  } else if (key == "attr" && json.next() == '[') {
    json.array([&] {
      if (json.next() != '{') return json.skip_value();
      json_attribute(json, node);
    });
  } else if (key.starts_with("comm_") || key == "num_ops" || key == "tensor_size") {
    Attribute attribute{std::string(key), "", 0, false, false};
    attribute.is_number = json.number(&attribute.number);
    apply(attribute, node);
  } else if (key == "is_cpu_op" && json.next() != '{' && json.next() != '[' && json.next() != '"') {
    const std::string& text = json.token();
    node->on_device = text == "false" || text == "0";
  } else {
    json.skip_value();
  }
}

class NodeReader {
 public:
  NodeReader(const std::string& path, ChakraDamage* damage) : path_(path), damage_(damage) {}

  ChakraNodes read() {
    try {
      is_binary() ? binary() : json();
    } catch (const Error& error) {
      if (nodes_.empty()) throw;
      damage_->notes.push_back(fmt::format("the rest of {}: {}", path_, error.text()));
    }
    for (const auto& [type, count] : unknown_types_) {
      damage_->notes.push_back(fmt::format(
          "no event, but {} of {} of unknown type {}, taken as {}", counted(count, "node"), path_,
          quote(type), count == 1 ? "one that computes" : "those that compute"));
    }
    if (unreadable_ > 0) {
      damage_->events += unreadable_;
      damage_->notes.push_back(fmt::format("{} of {} that are no nodes of the schema",
                                           counted(unreadable_, "message"), path_));
    }
    if (twice_ > 0) {
      damage_->events += twice_;
      damage_->notes.push_back(
          fmt::format("{} of {} with the id of an earlier one", counted(twice_, "node"), path_));
    }
    return std::move(nodes_);
  }

 private:
  bool is_binary() {
    trace::TextSource source(path_);
    return is_chakra_binary(source.view());
  }

  void keep(ChakraNode node) {
    const bool says = !node.name.empty() || node.type != ChakraType::invalid;
    if (node.id == kNone && says) {
      node.id = 0;  // protobuf's JSON leaves zeros out
    }
    if (node.id == kNone) return;
    const int64_t id = node.id;
    damage_->negative += node.negative;
    if (!node.unknown_type.empty()) {
      ++unknown_types_[node.unknown_type];
    }
    twice_ += !nodes_.try_emplace(id, std::move(node)).second;
  }

  void binary() {
    trace::TextSource source(path_);
    bool cut = false;
    read_message(&source, &cut);  // GlobalMetadata
    while (auto message = cut ? std::nullopt : read_message(&source, &cut)) {
      ChakraNode node;
      if (parse_node(*message, &node)) {
        keep(std::move(node));
      } else {
        ++unreadable_;
      }
    }
    if (cut) {
      fail(path_, "is cut off or damaged after {} bytes, within a message; expected a whole file",
           source.offset());
    }
    if (nodes_.empty()) fail(path_, "has no node; expected a Chakra execution trace");
  }

  void json() {
    trace::JsonStream json(path_);
    while (json.next() >= 0) {
      ChakraNode whole;
      json.object([&](std::string_view key) {
        if ((key == "nodes" || key == "workload_graph") && json.next() == '[') {
          json.array([&] {
            ChakraNode node;
            json.object([&](std::string_view field) { json_member(field, json, &node); });
            keep(std::move(node));
          });
        } else {
          json_member(key, json, &whole);
        }
      });
      keep(std::move(whole));
    }
    if (nodes_.empty()) fail(path_, "has no node; expected a Chakra execution trace");
  }

  const std::string& path_;
  ChakraDamage* damage_;
  ChakraNodes nodes_;
  int64_t unreadable_ = 0, twice_ = 0;
  std::map<std::string, int64_t> unknown_types_;
};

}  // namespace

bool is_chakra_binary(std::string_view beginning) {
  // Metadata, and a node behind it.
  for (int message = 0; message < 2; ++message) {
    ProtobufReader length(beginning);
    uint64_t size = 0;
    if (!length.varint(&size)) return false;
    size_t head = 1;
    while (head < beginning.size() && (beginning[head - 1] & 128) != 0) {
      ++head;
    }
    if (size > beginning.size() - head) return false;
    const std::string_view body = beginning.substr(head, size);
    ChakraNode node;
    if (message == 0 ? !is_metadata(body) : !parse_node(body, &node)) return false;
    beginning.remove_prefix(head + size);
  }
  return true;
}

ChakraNodes read_chakra_nodes(const std::string& path, ChakraDamage* damage) {
  return NodeReader(path, damage).read();
}

std::vector<ChakraCollectives> chakra_collectives(const std::vector<ChakraNodes>& ranks) {
  std::map<std::pair<std::string, std::string>, ChakraCollectives> by_name;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& [id, node] : ranks[rank]) {
      if (node.type != ChakraType::collective) continue;
      ChakraCollectives& kind = by_name[{node.group, node.name}];
      kind.group = node.group;
      kind.of_rank[rank].push_back(id);
    }
  }
  std::vector<ChakraCollectives> all;
  for (auto& [key, kind] : by_name) {
    all.push_back(std::move(kind));
  }
  return all;
}

}  // namespace hocket::whatif
