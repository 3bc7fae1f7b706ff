#pragma once

#include <string>
#include <vector>

namespace tutti::test {

/// A class, struct or union that a source defines.
struct CountedClass {
  std::string name;  // with the enclosing classes: "Engine::Submission"; "(unnamed)" if it has none
  int line = 0;      // the line where it begins
  int fields = 0;
};

/// Returns the classes that a C++ or C source defines, in the order in which they begin. Fields are
/// members that every object has. Static members, functions, types and base classes do not count,
/// and nested classes count by themselves. Members of an unnamed union or struct without a
/// declarator are fields of the enclosing class, too. The text must be formatted: a `<` that begins
/// template arguments follows its name without a blank. Preprocessor lines are left out, so all
/// branches of an #if count.
std::vector<CountedClass> classes_of(const std::string& text);

}  // namespace tutti::test
