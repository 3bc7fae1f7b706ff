#pragma once

#include <map>
#include <stdexcept>
#include <string>

namespace tutti::benchmarks {

/// The command line in the form "CASE --flag value ...". Every flag must have a default.
class Flags {
 public:
  Flags(int argc, char** argv, std::map<std::string, std::string> defaults)
      : values_(std::move(defaults)) {
    if (argc < 2) throw std::invalid_argument("which case?");
    case_name_ = argv[1];
    for (int i = 2; i < argc; i += 2) {
      const std::string flag = argv[i];
      const auto found = flag.starts_with("--") ? values_.find(flag.substr(2)) : values_.end();
      if (found == values_.end()) throw std::invalid_argument("unknown option " + flag);
      if (i + 1 == argc) throw std::invalid_argument(flag + " needs a value");
      found->second = argv[i + 1];
    }
  }

  const std::string& case_name() const { return case_name_; }
  const std::string& text(const std::string& name) const { return values_.at(name); }
  double number(const std::string& name) const {
    try {
      return std::stod(text(name));
    } catch (const std::exception&) {
      throw std::invalid_argument("--" + name + ": not a number: " + text(name));
    }
  }
  int whole(const std::string& name) const { return static_cast<int>(number(name)); }

 private:
  std::string case_name_;
  std::map<std::string, std::string> values_;
};

}  // namespace tutti::benchmarks
