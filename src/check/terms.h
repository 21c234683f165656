// SPDX-License-Identifier: Apache-2.0
// Hash-consed terms over a logical graph: the meaning of a value, without its layout.
//   tensor        a persistent tensor before the step
//   input         an input of one micro-batch
//   output        output i of an application of (op, attributes) to terms
//   sum           a multiset of non-sum terms; the order of addition does not matter
//   sizes         row counts per pair of ranks, from an exchange that belongs to one routing
//   coded         an output of a codec's encoder for a term
//   unfinished    a sum with terms in several pieces; ValueAlgebra keeps its parts
//   pack          several tensors in one flat buffer; Packs keeps their places
// Applications are compared exactly. Sums are compared by count and by the sum of 128-bit hashes of
// their terms (a wrong match has probability ~ 2^-128).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "graph/tensor_type.h"
#include "ops/op.h"

namespace hocket::check {

using ExprId = int32_t;
using TypeId = int32_t;
using AppId = int32_t;
inline constexpr ExprId kZero = 0;        ///< the empty sum
inline constexpr ExprId kUnwritten = -1;  ///< no value yet
inline constexpr ExprId kUnknown = -2;    ///< a consequence of something already refused

/// Interned tensor types.
class TypeTable {
 public:
  TypeId intern(const graph::TensorType& type);
  const graph::TensorType& operator[](TypeId id) const { return types_[id]; }

 private:
  void grow();
  std::vector<graph::TensorType> types_;
  std::vector<uint64_t> hashes_;
  std::vector<TypeId> slots_;
};

/// Interned (op, attributes).
struct OpKey {
  std::string op;
  graph::Attrs attrs;
  const ops::Op* rules = nullptr;  ///< null: no such op
};
class OpKeys {
 public:
  int32_t intern(std::string_view op, const graph::Attrs& attrs);
  const OpKey& operator[](int32_t id) const { return keys_[id]; }
  size_t size() const { return keys_.size(); }

 private:
  std::map<std::string, int32_t, std::less<>> index_;
  std::vector<OpKey> keys_;
};

struct Application {
  int32_t key = 0;       ///< OpKeys
  int32_t first_in = 0;  ///< index into Terms::inputs
  int32_t num_in = 0;
  ExprId first_out = 0;  ///< outputs have consecutive ids; of an alias: index into Terms::outputs
  bool alias = false;    ///< outputs belong to other applications
  int32_t num_out = 0;
  int32_t node = -1;  ///< graph node that made it first
  int32_t micro_batch = -1;
  AppId route = -1;  ///< of routed outputs: the route_plan application that placed the rows
};

struct Expr {
  enum class Kind : uint8_t {
    sum,
    tensor,
    input,
    output,
    sizes,
    coded,
    unfinished,
    pack
  } kind = Kind::sum;
  int32_t a = -1;  ///< tensor, input: graph tensor; output: application; sum: a part; sizes: route;
                   ///< coded: the term; unfinished, pack: number
  int32_t b = -1;  ///< input: micro-batch; output: index; sum: the other part; sizes: mesh axis;
                   ///< coded: Terms::Codes
  TypeId type = -1;   ///< logical type
  int32_t count = 0;  ///< sum: number of terms
};

class Terms {
 public:
  Terms();
  /// Reserves memory for about this many applications.
  void reserve(size_t apps);
  ExprId tensor(int32_t tensor, TypeId type);  ///< a persistent tensor's old value
  ExprId input(int32_t tensor, int32_t micro_batch, TypeId type);
  ExprId sizes(AppId route, int32_t axis);
  /// Output `part` of an encoder (OpKeys) for a term.
  ExprId coded(ExprId of, int32_t key, int32_t part, TypeId type);
  struct Codes {
    int32_t key, part;
  };
  Codes codes_of(ExprId coded) const { return codes_[exprs_[coded].b]; }
  ExprId unfinished(int32_t number, TypeId type);
  ExprId pack(int32_t number);
  /// Returns the application, made if new. Sets `*made` then; the caller fills the other fields.
  AppId apply(int32_t key, std::span<const ExprId> in, std::span<const TypeId> out, bool* made);
  AppId find(int32_t key, std::span<const ExprId> in) const;  ///< -1 if it does not occur
  /// Makes an application with terms of others as outputs. Requires: it does not occur yet.
  AppId alias(int32_t key, std::span<const ExprId> in, std::span<const ExprId> out);
  ExprId sum(ExprId left, ExprId right);  ///< multiset union

  ExprId output(AppId id, int32_t i) const {
    const Application& application = apps_[id];
    const int32_t place = application.first_out + i;
    return application.alias ? out_pool_[place] : place;
  }
  /// Returns the number of the output that the term is; -1 if it is none.
  int32_t place_of(AppId id, ExprId expr) const {
    for (int32_t i = 0; i < apps_[id].num_out; ++i) {
      if (output(id, i) == expr) return i;
    }
    return -1;
  }
  bool makes(AppId id, ExprId expr) const { return place_of(id, expr) >= 0; }
  const Expr& operator[](ExprId id) const { return exprs_[id]; }
  Application& app(AppId id) { return apps_[id]; }
  const Application& app(AppId id) const { return apps_[id]; }
  std::span<const ExprId> inputs(AppId id) const;
  int32_t num_apps() const { return static_cast<int32_t>(apps_.size()); }
  /// Returns the terms of a sum with multiplicity, sorted; a non-sum is its own only term.
  std::vector<ExprId> terms_of(ExprId id) const;
  /// Number of terms: 0 for zero, 1 for a non-sum.
  int32_t count(ExprId id) const;

 private:
  /// Slot of an open-addressing hash table. The tag (other bits of the hash) spares most look-ups.
  struct Slot {
    uint32_t tag = 0;
    int32_t id = -1;
  };
  Hash128 hash_of(ExprId id, uint64_t* total) const;
  AppId find(int32_t key, std::span<const ExprId> in, uint64_t hash) const;
  Application& add(int32_t key, std::span<const ExprId> in, uint64_t hash);
  void insert(std::vector<Slot>& slots, uint64_t hash, int32_t id);
  void resize_apps(size_t slots);
  void resize_sums(size_t slots);
  std::vector<Expr> exprs_;
  std::vector<Application> apps_;
  std::vector<ExprId> in_pool_, out_pool_;
  std::vector<Slot> app_slots_;
  struct Sum {
    Hash128 hash;
    uint64_t total;  ///< of the ids of its terms
    ExprId id;
  };
  static uint64_t place(const Sum& sum, int32_t count);
  std::vector<Sum> sums_;
  std::vector<Slot> sum_slots_;
  std::vector<int32_t> sum_index_;  ///< by ExprId: index into sums_, -1 for other kinds
  std::vector<Codes> codes_;        ///< by Expr::b of coded terms
  std::map<std::array<int32_t, 3>, ExprId> leaves_;
};

}  // namespace hocket::check
