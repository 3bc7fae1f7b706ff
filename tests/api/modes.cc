// Every case in every mode: threads, processes, hosts.

#include <fmt/format.h>

#include "tests/api/case.h"
#include "tests/support/ranks.h"

namespace tutti::test {

namespace {

std::vector<Case>& case_list() {
  static std::vector<Case> list;
  return list;
}

using Mode = void (*)(const RankFunction&);

// One gtest test runs one case in one mode.
class CaseTest : public testing::Test {
 public:
  CaseTest(Mode mode, RankFunction run) : mode_(mode), run_(std::move(run)) {}
  void TestBody() override { mode_(run_); }

 private:
  const Mode mode_;
  const RankFunction run_;
};

constexpr struct {
  const char* name;
  Mode run;
} kModes[] = {
    {"threads", [](const RankFunction& body) { run_threads(4, body); }},
    {"processes", [](const RankFunction& body) { run_processes(3, body); }},
    {"hosts",
     [](const RankFunction& body) {
       run_hosts({0, 0, 1, 1}, body);
     }},
};

}  // namespace

const std::vector<Case>& cases() { return case_list(); }

bool register_case(Case one, const char* file, int line) {
  for (const auto& mode : kModes)
    testing::RegisterTest(
        one.suite.c_str(), fmt::format("{}/{}", one.name, mode.name).c_str(), nullptr, nullptr,
        file, line,
        [run = one.run, mode = mode.run]() -> testing::Test* { return new CaseTest(mode, run); });
  case_list().push_back(std::move(one));
  return true;
}

}  // namespace tutti::test
