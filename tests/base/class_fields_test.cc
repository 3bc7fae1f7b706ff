// Tests the counter of fields with all the ways in which sources declare members.
#include "tests/base/class_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Returns "name: fields" for each class.
std::vector<std::string> counted(const std::string& text) {
  std::vector<std::string> classes;
  for (const auto& [name, line, fields] : test::classes_of(text))
    classes.push_back(name + ": " + std::to_string(fields));
  return classes;
}

// Returns the number of fields of a class with these members.
int fields_of(const std::string& members) {
  const auto classes = test::classes_of("class A {\n" + members + "\n};\n");
  return classes.empty() ? -1 : classes[0].fields;
}

TEST(ClassFields, EachDeclaratorIsAField) {
  EXPECT_EQ(fields_of(""), 0);
  EXPECT_EQ(fields_of("int a_;"), 1);
  EXPECT_EQ(fields_of("int x, y = f(1, 2), *z = nullptr;"), 3);
  EXPECT_EQ(fields_of("int a_[2][3] = {{1, 2, 3}, {4, 5, 6}}, b_{7}, c_;"), 3);
  EXPECT_EQ(fields_of("unsigned low : 3, high : 5;\n  bool is_it : 1 = true;"), 3);
  EXPECT_EQ(fields_of("public:\n  int a;\n\n private:\n  const int b_;\n  mutable int& c_;"), 3);
}

TEST(ClassFields, CommasOfTypesAndValuesDivideNothing) {
  EXPECT_EQ(fields_of("std::map<int, std::pair<int, int>> a_;"), 1);
  EXPECT_EQ(fields_of("std::function<void(int, const char*)> a_;"), 1);
  EXPECT_EQ(fields_of("std::vector<std::optional<Error>> gone_ =\n"
                      "      std::vector<std::optional<Error>>(static_cast<size_t>(size_), {});"),
            1);
  EXPECT_EQ(fields_of("bool a_ = kOne < kTwo, b_ = kOne > kTwo;"), 2);
  EXPECT_EQ(fields_of("std::function<int(int)> a_ = [](int x) { return x, x; };"), 1);
  EXPECT_EQ(fields_of("std::array<int, (1 << 3)> a_{1, 2};"), 1);
}

TEST(ClassFields, FunctionsAreNone) {
  EXPECT_EQ(fields_of("A(int& x, int y) : x_(x), y_{y} { z_ = 0; }\n  ~A() = default;"), 0);
  EXPECT_EQ(fields_of("explicit A(int x) noexcept(true) : B<int>{x} {}"), 0);
  EXPECT_EQ(fields_of("virtual int f(int& a, int b = 1) const = 0;\n  int g() { return 1; }"), 0);
  EXPECT_EQ(fields_of("A& operator=(const A&) = delete;\n  int operator()(int x) const;"), 0);
  EXPECT_EQ(fields_of("bool operator<(const A& o) const { return a < o.a; }\n  int a;"), 1);
  EXPECT_EQ(fields_of("auto operator<=>(const A&) const = default;\n  operator bool() const;"), 0);
  EXPECT_EQ(fields_of("template <class T, class U = int>\n  void f(T&& t) { int local; }"), 0);
  EXPECT_EQ(fields_of("[[nodiscard]] std::pair<int, int> f() const;\n  int a_;"), 1);
  EXPECT_EQ(fields_of("friend bool operator==(const A&, const A&) = default;"), 0);
}

TEST(ClassFields, PointersToFunctionsAreFields) {
  EXPECT_EQ(fields_of("int (*f)(int, int);\n  void (*const g)(void*) = nullptr;"), 2);
  EXPECT_EQ(fields_of("bool (*applies)(Kind), (*is_it)(Kind);"), 2);
}

TEST(ClassFields, MembersThatNoObjectHasAreNone) {
  EXPECT_EQ(fields_of("static int a_;\n  static constexpr int kB = 1, kC = 2;"), 0);
  EXPECT_EQ(fields_of("using X = int;\n  typedef int Y;\n  friend class B;\n  enum { one, two };"),
            0);
  EXPECT_EQ(fields_of("class B;\n  struct ns::C;\n  enum class D : uint8_t;\n  class B* b_;"), 1);
  EXPECT_EQ(fields_of("static_assert(sizeof(int) == 4, \"as many\");"), 0);
  EXPECT_EQ(fields_of("enum class State : uint8_t { on, off } state_ = State::on;"), 1);
}

TEST(ClassFields, WhatIsNoCodeIsNotRead) {
  EXPECT_EQ(fields_of("// int a_;\n  /* int b_;\n  int c_; */\n  int d_;  // { \" '"), 1);
  EXPECT_EQ(fields_of("std::string a_ = \"; int b_; \\\" {\";\n  char c_ = '{', d_ = '\\'';"), 3);
  EXPECT_EQ(fields_of("const char* a_ = R\"x(; int b_; )\" {)x\";\n  int c_ = 1'000'000;"), 2);
  EXPECT_EQ(fields_of("#define X \\\n  int a_;\n  int b_;\n#if X\n  int c_;\n#endif"), 2);
  EXPECT_EQ(fields_of("alignas(64) std::atomic<int> a_{0};\n  decltype(f()) b_;"), 2);
}

TEST(ClassFields, NestedClassesCountByThemselves) {
  EXPECT_THAT(counted("struct A {\n"
                      "  struct B { int x, y; };\n"
                      "  class C final : public D<int, E>, F { int x_; } c_, d_;\n"
                      "  B b;\n"
                      "  void f() { struct Local { int x; } local; }\n"
                      "};\n"),
              ElementsAre("A: 3", "A::B: 2", "A::C: 1", "A::Local: 1"));
  EXPECT_THAT(counted("struct A {\n  union {\n    int x;\n    float y;\n  };\n  int z;\n};\n"),
              ElementsAre("A: 3", "A::(unnamed): 2"));
}

TEST(ClassFields, DefinitionsOfClassesAreTold) {
  EXPECT_THAT(counted("template <class T, class U>\nstruct alignas(8) A<T, U*> : B { T t; };\n"
                      "class [[nodiscard]] C::D {};\n"
                      "typedef struct {\n  int x;\n} c_type;\n"),
              ElementsAre("A: 1", "D: 0", "(unnamed): 1"));
  EXPECT_THAT(counted("class A;\nenum class B { x, y };\nvoid f(struct C* c) { struct D d; }\n"
                      "template <class T>\nvoid g() {}\nstruct E f(int) { return {}; }\n"),
              IsEmpty());
  const auto classes = test::classes_of("\n\nclass A {};\nclass B {};\n");
  ASSERT_EQ(classes.size(), 2u);
  EXPECT_EQ(classes[0].line, 3);
  EXPECT_EQ(classes[1].line, 4);
}

}  // namespace
}  // namespace tutti
