#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::run {

/// The parsed command line.
struct Request {
  int ranks = 0;  // 0: as many as the hosts' slots
  std::string hosts = "localhost";
  bool hosts_given = false;
  std::vector<std::string> remote_shell = {"ssh", "-o", "BatchMode=yes"};
  std::string network_interface;  // interface at whose address the store is served
  std::string timeline;
  std::vector<std::string> variables;  // VAR or VAR=value, set for all ranks
  std::string output;                  // folder for the ranks' output; empty: none
  bool prefix = true;                  // put "[rank] " before each line
  bool bind = false;                   // bind each rank to its share of the cores
  double grace = 10;                   // seconds; 0: no limit
  bool keep_going = false;
  bool print_options = false;
  bool remote_rank = false;      // this process was started by ssh for one rank
  bool bare_first_rank = false;  // set by code only: rank 0's lines have no prefix
  std::vector<std::string> program;
};

/// The exit code that the launcher returns immediately, and the text that it prints first.
struct Refusal {
  int code = 2;
  std::string text;
};

/// The main function of a tool: calls settle_inheritance() and then `run`, and returns the exit
/// code of the tool. If `run` throws, prints the reason. `tool` is the name in front of it.
int run_tool(std::string_view tool, const std::function<int()>& run);

/// Throws Refusal. A usage error has one line and code 2; help has code 0.
Request parse_command_line(const std::vector<std::string>& arguments);

}  // namespace tutti::run
