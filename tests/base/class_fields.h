#pragma once

#include <string>
#include <vector>

namespace tutti::test {

/// A class, struct or union as its definition stands in a source.
struct CountedClass {
  std::string name;  // with the classes around it: "Engine::Submission"; "(unnamed)" if it has none
  int line = 0;      // where it begins
  int fields = 0;
};

/// The classes that a source in C++ or C defines, in the order in which they begin. Fields are
/// members that every object has: static members, functions, types and base classes are none, and
/// nested classes count by themselves. The members of an unnamed union or struct without a
/// declarator are fields of the class around it, too. The text is to be formatted: a `<` that
/// begins template arguments follows its name without a blank. Preprocessor lines are left out, and
/// so all branches of an #if count.
std::vector<CountedClass> classes_of(const std::string& text);

}  // namespace tutti::test
