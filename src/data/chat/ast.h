// SPDX-License-Identifier: Apache-2.0
// Syntax tree of a Jinja template. Names are numbers: indices of Program::names.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/value.h"

namespace hocket::data::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using StmtPtr = std::unique_ptr<Stmt>;
using Block = std::vector<StmtPtr>;

struct Expr {
  enum class Op : uint8_t {
    constant,
    name,
    list,
    tuple,
    dict,  // dict: key, value, key, value ..
    add,
    sub,
    mul,
    div,
    floor_div,
    mod,
    pow,
    neg,
    pos,
    logical_not,
    logical_and,
    logical_or,
    concat,
    compare,    // compare: operands; `operators` between
    condition,  // value, test, other (may be null)
    attribute,
    item,
    slice,  // slice: value, start, stop, step
    call,
    filter,
    test  // first the callee or subject
  };
  Op op = Op::constant;
  int line = 0;
  int depth = 1;
  int name = -1;
  Value constant;
  std::string text;  ///< of an attribute, filter or test
  std::vector<ExprPtr> args;
  std::vector<std::string> operators;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, star_star;  ///< `*args`, `**kwargs` of a call
};

/// Place that a value is assigned to: a name, an attribute of a namespace, or several.
struct Target {
  int name = -1;
  std::string attribute;
  std::vector<Target> parts;
  bool several = false;
};

/// Parameters of a macro or call block.
struct Signature {
  std::vector<std::string> names;
  std::vector<int> ids;
  std::vector<ExprPtr> defaults;  ///< of the last ones
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Branch {
  ExprPtr test;  ///< null: else
  Block body;
};

struct Stmt {
  enum class Kind : uint8_t {
    text,
    output,
    conditional,
    loop,
    set,
    set_block,
    macro,
    call_block,
    filter_block,
    with,
    generation,
    break_loop,
    continue_loop
  };
  Kind kind = Kind::text;
  int line = 0;
  std::string text;  ///< of Kind::text; name of a macro
  int name = -1;     ///< of a macro
  std::vector<ExprPtr> exprs;
  std::vector<Target> targets;
  std::vector<Branch> branches;
  Block body, otherwise;  ///< the latter of a loop without iterations
  Signature signature;
  ExprPtr filter;  ///< of a loop, set block or filter block
  bool recursive = false, uses_loop = false;
};

struct Program {
  std::string where;  ///< names the template in errors
  std::vector<std::string> names;
  Block body;
  bool has_generation = false;
};

/// Throws Error, with the line, for anything that the engine does not support.
Program parse(std::string_view source, const std::string& where);

}  // namespace hocket::data::jinja
