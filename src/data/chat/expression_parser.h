// SPDX-License-Identifier: Apache-2.0
// Parser of expressions, with jinja2's grammar and precedences; parser.cc adds the statements.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "data/chat/ast.h"
#include "data/chat/lexer.h"

namespace hocket::data::jinja {

constexpr std::string_view kClosingBracket = ")";

class ExpressionParser {
 public:
  ExpressionParser(std::string_view source, const std::string& where);
  ~ExpressionParser() = default;
  ExpressionParser(const ExpressionParser&) = delete;
  ExpressionParser& operator=(const ExpressionParser&) = delete;

 protected:
  /// A body whose mentions of special names matter: of a macro (caller, varargs, kwargs) or a loop.
  struct Frame {
    bool loop = false, macro = false;
    bool uses_loop = false, uses_caller = false, uses_varargs = false, uses_kwargs = false;
  };
  /// One level of nesting, of which there is a limit.
  class Nested {
   public:
    explicit Nested(ExpressionParser* parser);
    ~Nested() { --parser_->nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    ExpressionParser* parser_;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> what, Args&&... args) const {
    fail(where_, "line {}: {}", now().line, fmt::format(what, std::forward<Args>(args)...));
  }
  static std::string shown(const Token& token);
  bool is_op(std::string_view text) const;
  bool is_name(std::string_view text) const;
  Token take();
  bool skip_op(std::string_view text);
  bool skip_name(std::string_view text);
  void expect_op(std::string_view text);
  void expect_block_end();
  std::string expect_name();
  int id(const std::string& name);

  void mention(const std::string& name);
  // An expression, or several with commas: a tuple. `end` is a name that may follow.
  ExprPtr tuple(bool conditions = true, std::string_view end = "", bool in_brackets = false);
  ExprPtr expression();
  // Filters behind one another; `subject` is null where a block's text is filtered.
  ExprPtr filters(ExprPtr subject, bool begun = false);

  const std::string where_;
  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  Program program_;
  std::vector<Frame> frames_;

 private:
  ExprPtr node(Expr::Op op, int line, std::vector<ExprPtr> args = {}) const;
  // Computes the depth of a node with all of its parts.
  void settle(Expr* out) const;
  ExprPtr two(Expr::Op op, int line, ExprPtr left, ExprPtr right) const;
  ExprPtr one(Expr::Op op, int line, ExprPtr arg) const;
  ExprPtr constant(int line, Value value) const;
  bool ends_tuple(std::string_view end) const;
  ExprPtr either();
  ExprPtr both();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr primary();
  ExprPtr name(const Token& token);
  std::vector<ExprPtr> elements(std::string_view close);
  ExprPtr dict(int line);
  ExprPtr postfix(ExprPtr out);
  ExprPtr filters_and_tests(ExprPtr out);
  ExprPtr subscript(ExprPtr subject);
  // The arguments in brackets that follow, into a call, filter or test.
  void arguments(Expr* out);
  ExprPtr call(ExprPtr callee);
  std::string dotted_name();
  ExprPtr test(ExprPtr subject);

  std::unordered_map<std::string, int> ids_;
};

}  // namespace hocket::data::jinja
