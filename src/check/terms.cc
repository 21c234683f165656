// SPDX-License-Identifier: Apache-2.0
#include "check/terms.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace hocket::check {
namespace {

uint64_t hash_type(const graph::TensorType& type) {
  uint64_t hash = static_cast<uint64_t>(type.dtype) * 131 + static_cast<uint64_t>(type.top_k) +
                  static_cast<uint64_t>(type.encoding.block) * 31;
  for (const graph::Dim& dim : type.dims) {
    hash = (hash ^ (static_cast<uint64_t>(dim) + static_cast<uint64_t>(dim.symbol() + 1) * 131)) *
               0x9e3779b97f4a7c15ULL +
           (hash >> 29);
  }
  return mix64(hash);
}

/// Hash of an application. Its low half places the entry near applications of similar terms: terms
/// made together are looked up together, and random access to a large table dominates the cost.
uint64_t hash_app(int32_t key, std::span<const ExprId> in) {
  uint64_t hash = static_cast<uint64_t>(key) + 0x51ed270b0a1f39c1ULL;
  uint64_t total = 0;
  for (ExprId expr : in) {
    hash = (hash ^ static_cast<uint32_t>(expr)) * 0x9e3779b97f4a7c15ULL + (hash >> 31);
    total += static_cast<uint32_t>(expr);
  }
  hash = mix64(hash);
  const uint64_t near = in.empty() ? 0 : total / in.size() * 4;
  return (hash & ~uint64_t{0xffffffff}) | static_cast<uint32_t>(near + (hash & 511));
}

}  // namespace

TypeId TypeTable::intern(const graph::TensorType& type) {
  if (types_.size() * 2 >= slots_.size()) {
    grow();
  }
  const uint64_t hash = hash_type(type);
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    const TypeId id = slots_[i];
    if (id < 0) {
      slots_[i] = static_cast<TypeId>(types_.size());
      types_.push_back(type);
      hashes_.push_back(hash);
      return slots_[i];
    }
    if (hashes_[id] == hash && types_[id] == type) {
      return id;
    }
  }
}

void TypeTable::grow() {
  slots_.assign(std::max<size_t>(64, slots_.size() * 2), -1);
  const size_t mask = slots_.size() - 1;
  for (size_t id = 0; id < types_.size(); ++id) {
    size_t i = hashes_[id] & mask;
    while (slots_[i] >= 0) {
      i = (i + 1) & mask;
    }
    slots_[i] = static_cast<TypeId>(id);
  }
}

int32_t OpKeys::intern(std::string_view op, const graph::Attrs& attrs) {
  std::string text = std::string(op) + graph::to_string(attrs);
  auto [it, made] = index_.emplace(std::move(text), static_cast<int32_t>(keys_.size()));
  if (made) {
    keys_.push_back({std::string(op), attrs, ops::find_or_null(op)});
  }
  return it->second;
}

Terms::Terms() {
  exprs_.push_back({Expr::Kind::sum, -1, -1, -1, 0});
  sum_index_.push_back(0);
  sums_.push_back({{0, 0}, 0, kZero});
}

ExprId Terms::tensor(int32_t tensor, TypeId type) {
  auto [it, made] =
      leaves_.emplace(std::array<int32_t, 3>{0, tensor, -1}, static_cast<ExprId>(exprs_.size()));
  if (made) {
    exprs_.push_back({Expr::Kind::tensor, tensor, -1, type, 1});
    sum_index_.push_back(-1);
  }
  return it->second;
}

ExprId Terms::input(int32_t tensor, int32_t micro_batch, TypeId type) {
  auto [it, made] = leaves_.emplace(std::array<int32_t, 3>{1, tensor, micro_batch},
                                    static_cast<ExprId>(exprs_.size()));
  if (made) {
    exprs_.push_back({Expr::Kind::input, tensor, micro_batch, type, 1});
    sum_index_.push_back(-1);
  }
  return it->second;
}

ExprId Terms::sizes(AppId route, int32_t axis) {
  auto [it, made] =
      leaves_.emplace(std::array<int32_t, 3>{2, route, axis}, static_cast<ExprId>(exprs_.size()));
  if (made) {
    exprs_.push_back({Expr::Kind::sizes, route, axis, -1, 1});
    sum_index_.push_back(-1);
  }
  return it->second;
}

ExprId Terms::coded(ExprId of, int32_t key, int32_t part, TypeId type) {
  const int32_t codes = static_cast<int32_t>(
      std::find_if(codes_.begin(), codes_.end(),
                   [&](const Codes& one) { return one.key == key && one.part == part; }) -
      codes_.begin());
  if (codes == static_cast<int32_t>(codes_.size())) {
    codes_.push_back({key, part});
  }
  auto [it, made] =
      leaves_.emplace(std::array<int32_t, 3>{4, of, codes}, static_cast<ExprId>(exprs_.size()));
  if (made) {
    exprs_.push_back({Expr::Kind::coded, of, codes, type, 1});
    sum_index_.push_back(-1);
  }
  return it->second;
}

ExprId Terms::unfinished(int32_t number, TypeId type) {
  auto [it, made] =
      leaves_.emplace(std::array<int32_t, 3>{3, number, -1}, static_cast<ExprId>(exprs_.size()));
  if (made) {
    exprs_.push_back({Expr::Kind::unfinished, number, -1, type, 1});
    sum_index_.push_back(-1);
  }
  return it->second;
}

ExprId Terms::pack(int32_t number) {
  auto [it, made] =
      leaves_.emplace(std::array<int32_t, 3>{4, number, -1}, static_cast<ExprId>(exprs_.size()));
  if (made) {
    exprs_.push_back({Expr::Kind::pack, number, -1, -1, 1});
    sum_index_.push_back(-1);
  }
  return it->second;
}

std::span<const ExprId> Terms::inputs(AppId id) const {
  const Application& application = app(id);
  return {in_pool_.data() + application.first_in, static_cast<size_t>(application.num_in)};
}

void Terms::insert(std::vector<Slot>& slots, uint64_t hash, int32_t id) {
  const size_t mask = slots.size() - 1;
  size_t i = hash & mask;
  while (slots[i].id >= 0) {
    i = (i + 1) & mask;
  }
  slots[i] = {static_cast<uint32_t>(hash >> 32), id};
}

AppId Terms::find(int32_t key, std::span<const ExprId> in) const {
  return find(key, in, hash_app(key, in));
}

AppId Terms::find(int32_t key, std::span<const ExprId> in, uint64_t hash) const {
  if (app_slots_.empty()) return -1;
  const size_t mask = app_slots_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    const Slot slot = app_slots_[i];
    if (slot.id < 0) return -1;
    if (slot.tag != static_cast<uint32_t>(hash >> 32) || app(slot.id).key != key) continue;
    const std::span<const ExprId> have = inputs(slot.id);
    if (std::equal(have.begin(), have.end(), in.begin(), in.end())) return slot.id;
  }
}

Application& Terms::add(int32_t key, std::span<const ExprId> in, uint64_t hash) {
  const AppId id = static_cast<AppId>(apps_.size());
  Application app;
  app.key = key;
  app.first_in = static_cast<int32_t>(in_pool_.size());
  app.num_in = static_cast<int32_t>(in.size());
  in_pool_.insert(in_pool_.end(), in.begin(), in.end());
  apps_.push_back(app);
  insert(app_slots_, hash, id);
  return apps_.back();
}

AppId Terms::apply(int32_t key, std::span<const ExprId> in, std::span<const TypeId> out,
                   bool* made) {
  if (apps_.size() * 2 >= app_slots_.size()) {
    resize_apps(app_slots_.size() * 2);
  }
  const uint64_t hash = hash_app(key, in);
  if (AppId id = find(key, in, hash); id >= 0) {
    *made = false;
    return id;
  }
  *made = true;
  Application& app = add(key, in, hash);
  app.first_out = static_cast<ExprId>(exprs_.size());
  app.num_out = static_cast<int32_t>(out.size());
  const AppId id = static_cast<AppId>(apps_.size() - 1);
  for (size_t i = 0; i < out.size(); ++i) {
    exprs_.push_back({Expr::Kind::output, id, static_cast<int32_t>(i), out[i], 1});
    sum_index_.push_back(-1);
  }
  return id;
}

AppId Terms::alias(int32_t key, std::span<const ExprId> in, std::span<const ExprId> out) {
  if (apps_.size() * 2 >= app_slots_.size()) {
    resize_apps(app_slots_.size() * 2);
  }
  Application& app = add(key, in, hash_app(key, in));
  app.alias = true;
  app.first_out = static_cast<int32_t>(out_pool_.size());
  app.num_out = static_cast<int32_t>(out.size());
  out_pool_.insert(out_pool_.end(), out.begin(), out.end());
  return static_cast<AppId>(apps_.size() - 1);
}

void Terms::resize_apps(size_t slots) {
  app_slots_.assign(std::max<size_t>(1024, slots), Slot{});
  for (size_t id = 0; id < apps_.size(); ++id) {
    insert(app_slots_, hash_app(apps_[id].key, inputs(static_cast<AppId>(id))),
           static_cast<int32_t>(id));
  }
}

void Terms::reserve(size_t apps) {
  size_t slots = 1024;
  while (slots < apps * 2) {
    slots *= 2;
  }
  resize_apps(slots);
  resize_sums(slots / 2);
  apps_.reserve(apps);
  in_pool_.reserve(apps * 4);
  exprs_.reserve(apps * 3);
  sum_index_.reserve(apps * 3);
}

Hash128 Terms::hash_of(ExprId id, uint64_t* total) const {
  const int32_t sum = sum_index_[id];
  *total += sum >= 0 ? sums_[sum].total : static_cast<uint64_t>(id);
  if (sum >= 0) return sums_[sum].hash;
  const uint64_t value = static_cast<uint64_t>(id);
  return {mix64(value * 0x9e3779b97f4a7c15ULL + 0x1d8e4e27c47d124fULL),
          mix64(value * 0xd1342543de82ef95ULL + 0xeb44accab455d165ULL)};
}

int32_t Terms::count(ExprId id) const { return exprs_[id].count; }

/// Hash of a sum, near those made at the same time, like hash_app.
uint64_t Terms::place(const Sum& sum, int32_t count) {
  const uint64_t hash = mix64(sum.hash.low);
  const uint64_t near = sum.total / static_cast<uint64_t>(count) * 4;
  return (hash & ~uint64_t{0xffffffff}) | static_cast<uint32_t>(near + (hash & 511));
}

ExprId Terms::sum(ExprId left, ExprId right) {
  // A sum is identified by the number of its terms and the sum of their hashes, which is
  // independent of the order. The hash of a sum is stored, so a sum of sums costs the same as one
  // of two terms.
  if (left == kZero) return right;
  if (right == kZero) return left;
  if (sums_.size() * 2 >= sum_slots_.size()) {
    resize_sums(sum_slots_.size() * 2);
  }
  uint64_t total = 0;
  const Hash128 left_hash = hash_of(left, &total);
  const Hash128 right_hash = hash_of(right, &total);
  const Hash128 hash{left_hash.high + right_hash.high, left_hash.low + right_hash.low};
  const int32_t terms = count(left) + count(right);
  const uint64_t key = place({hash, total, kZero}, terms);
  const size_t mask = sum_slots_.size() - 1;
  for (size_t i = key & mask; sum_slots_[i].id >= 0; i = (i + 1) & mask) {
    if (sum_slots_[i].tag != static_cast<uint32_t>(key >> 32)) continue;
    const Sum& sum = sums_[sum_slots_[i].id];
    if (sum.hash == hash && count(sum.id) == terms) return sum.id;
  }
  const ExprId id = static_cast<ExprId>(exprs_.size());
  exprs_.push_back({Expr::Kind::sum, left, right, exprs_[left].type, terms});
  sum_index_.push_back(static_cast<int32_t>(sums_.size()));
  insert(sum_slots_, key, static_cast<int32_t>(sums_.size()));
  sums_.push_back({hash, total, id});
  return id;
}

void Terms::resize_sums(size_t slots) {
  sum_slots_.assign(std::max<size_t>(1024, slots), Slot{});
  for (size_t s = 1; s < sums_.size(); ++s) {
    insert(sum_slots_, place(sums_[s], count(sums_[s].id)), static_cast<int32_t>(s));
  }
}

std::vector<ExprId> Terms::terms_of(ExprId id) const {
  std::vector<ExprId> list;
  std::vector<ExprId> stack{id};
  while (!stack.empty()) {
    const ExprId expr = stack.back();
    stack.pop_back();
    const Expr& term = (*this)[expr];
    if (term.kind != Expr::Kind::sum) {
      list.push_back(expr);
    } else if (expr != kZero) {
      stack.push_back(term.b);
      stack.push_back(term.a);
    }
  }
  std::sort(list.begin(), list.end());
  return list;
}

}  // namespace hocket::check
