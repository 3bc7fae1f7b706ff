#pragma once

#include <string>
#include <vector>

namespace tutti::run {

/// What the user asked for.
struct Request {
  int ranks = 0;  // 0: as many as the hosts have slots
  std::string hosts = "localhost";
  bool hosts_given = false;
  std::vector<std::string> remote_shell = {"ssh", "-o", "BatchMode=yes"};
  std::string network_interface;  // on which the store is served
  std::string timeline;
  std::vector<std::string> variables;  // VAR or VAR=value, for all ranks
  std::string output;                  // folder for what each rank writes; empty: here
  bool prefix = true;                  // before each line
  bool bind = false;                   // each rank to its share of the cores
  double grace = 10;                   // seconds; 0: without end
  bool keep_going = false;
  bool print_options = false;
  bool remote_rank = false;      // this is the other end of ssh
  bool bare_first_rank = false;  // in code only: rank 0's lines come without its number
  std::vector<std::string> program;
};

/// What the launcher should end with at once, and what to print first.
struct Refusal {
  int code = 2;
  std::string text;
};

/// Throws Refusal: usage errors are one line and code 2, help is code 0.
Request parse_command_line(const std::vector<std::string>& arguments);

}  // namespace tutti::run
