#include "tools/run/command_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

#include "tools/inheritance.h"
#include "tools/run/child.h"
#include "tools/run/output.h"
#include "tutti/base/text.h"
#include "tutti/core/settings/version.h"

namespace tutti::run {

namespace {

constexpr int kMostRanks = 65'536;

// Arguments before the program's name belong to the launcher. "-np" is the spelling that users of
// MPI know; a parser of one-letter options would read it as "-n p".
std::vector<std::string> take_own_words(const std::vector<std::string>& arguments, size_t& taken) {
  constexpr std::array<std::string_view, 10> kWithValue = {
      "-n",    "--np",        "--hosts",  "--rsh",     "--timeline",
      "--env", "--interface", "--output", "--bind-to", "--grace"};
  std::vector<std::string> own;
  for (taken = 0; taken < arguments.size() && arguments[taken].starts_with('-'); ++taken) {
    if (arguments[taken] == "--") {
      ++taken;
      break;
    }
    auto word = arguments[taken];
    if (word.starts_with("-np")) word = word.size() == 3 ? "--np" : "--np=" + word.substr(3);
    if (word.starts_with("--np==")) word.erase(4, 1);  // -np=2
    own.push_back(std::move(word));
    const bool has_value =
        std::find(kWithValue.begin(), kWithValue.end(), own.back()) != kWithValue.end();
    if (has_value && taken + 1 < arguments.size()) own.push_back(arguments[++taken]);
  }
  return own;
}

Refusal usage_error(const std::string& why) {
  return {2, fmt::format("tutti-run: {}; see tutti-run --help\n", why)};
}

std::vector<std::string> split_words(std::string_view text) {
  auto words = split_text(text, ' ');
  std::erase(words, "");
  return words;
}

}  // namespace

int run_tool(std::string_view tool, const std::function<int()>& run) {
  const auto failed = [&](const std::exception& error, int code) {
    write_all(STDERR_FILENO, fmt::format("{}: {}\n", tool, error.what()));
    return code;
  };
  try {
    settle_inheritance();
    return run();
  } catch (const Refusal& refusal) {
    write_all(refusal.code == 0 ? STDOUT_FILENO : STDERR_FILENO, refusal.text);
    return refusal.code;
  } catch (const CannotStart& error) {
    return failed(error, error.exit_code());
  } catch (const Error& error) {
    return failed(error, error.code() == ErrorCode::invalid_argument ? 2 : 1);
  } catch (const std::exception& error) {
    return failed(error, 1);
  }
}

Request parse_command_line(const std::vector<std::string>& arguments) {
  Request request;
  std::string ranks, remote_shell, bind, grace;
  CLI::App app("Starts a program as several ranks that find each other.", "tutti-run");
  app.footer(
      "Examples:\n"
      "  tutti-run -np 4 ./train --epochs 3\n"
      "  tutti-run --hosts a:2,b:2 ./train");
  app.add_option("-n,--np", ranks, "How many ranks (also -np); without it, all slots of --hosts")
      ->type_name("N");
  app.add_option("--hosts", request.hosts,
                 "Where: name or name:ranks, separated by commas; filled in this order")
      ->type_name("a:2,b:2");
  app.add_option("--rsh", remote_shell,
                 "Command that runs a command on another host, called as CMD host command... "
                 "(default: ssh -o BatchMode=yes)")
      ->type_name("CMD");
  app.add_option("--interface", request.network_interface,
                 "Network interface, by name or address, on which other hosts reach this one")
      ->type_name("NAME");
  app.add_option("--timeline", request.timeline,
                 "Write a Chrome trace of all ranks (open in "
                 "ui.perfetto.dev)")
      ->type_name("FILE");
  app.add_option("--env", request.variables,
                 "A variable for all ranks, with a value or with the one it has here; may be given "
                 "more than once")
      ->type_name("VAR[=VALUE]")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option(
         "--output", request.output,
         "Write each rank's lines into FOLDER/RANK.out and FOLDER/RANK.err, not to the terminal")
      ->type_name("FOLDER");
  app.add_flag_callback(
      "--no-prefix", [&] { request.prefix = false; },
      "Print lines without the number of their rank");
  app.add_option("--bind-to", bind, "core: bind each rank to its own share of the host's cores")
      ->type_name("none|core");
  app.add_option(
         "--grace", grace,
         "Ctrl-C and SIGTERM are passed on to the ranks. Seconds until ranks that still run "
         "get SIGTERM, and 5 s later SIGKILL (default: 10; 0: wait for them). A second "
         "Ctrl-C or SIGTERM kills them immediately")
      ->type_name("SECONDS");
  app.add_flag(
      "--keep-going", request.keep_going,
      "A failed rank does not end the others; the exit code is that of the last rank to end");
  app.add_flag("--options", request.print_options,
               "Print every setting with its value and where it came from");
  app.set_version_flag("--version", fmt::format("tutti-run {}", kVersion));
  app.add_flag("--remote-rank", request.remote_rank)->group("");

  size_t taken = 0;
  auto words = take_own_words(arguments, taken);
  request.program.assign(arguments.begin() + static_cast<ptrdiff_t>(taken), arguments.end());
  std::reverse(words.begin(), words.end());  // CLI11 expects this order
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    throw Refusal{0, app.help()};
  } catch (const CLI::CallForVersion& version) {
    throw Refusal{0, fmt::format("{}\n", version.what())};
  } catch (const CLI::ParseError& error) {
    throw usage_error(error.what());
  }
  if (request.print_options || request.remote_rank) return request;

  request.hosts_given = app.count("--hosts") > 0;
  if (app.count("--np") > 0) {
    const auto number = parse_integer(ranks, 1, kMostRanks);
    if (!number)
      throw usage_error(
          fmt::format("-np {} is not a number of ranks (must be from 1 to {})", ranks, kMostRanks));
    request.ranks = static_cast<int>(*number);
  } else if (!request.hosts_given) {
    const bool late = std::any_of(request.program.begin(), request.program.end(),
                                  [](const auto& word) { return word.starts_with("-np"); });
    throw usage_error(late ? "how many ranks? Give -np before the program, because options after "
                             "it belong to the program"
                           : "how many ranks? Give -np N or --hosts");
  }
  if (app.count("--rsh") > 0) request.remote_shell = split_words(remote_shell);
  if (request.remote_shell.empty()) throw usage_error("--rsh is empty; give it a command");
  if (app.count("--grace") > 0) {
    const auto seconds = parse_number(grace, 0, 1e6);
    if (!seconds)
      throw usage_error(
          fmt::format("--grace {} is not a time (must be seconds, 0 or more)", grace));
    request.grace = *seconds;
  }
  if (app.count("--bind-to") > 0 && bind != "core" && bind != "none")
    throw usage_error(fmt::format("--bind-to {} is not known (must be core or none)", bind));
  request.bind = bind == "core";
  for (const auto& variable : request.variables)
    if (variable.empty() || variable.front() == '=')
      throw usage_error(fmt::format("--env {} does not name a variable", variable));
  if (request.program.empty()) throw usage_error("which program? Give it after the options");
  return request;
}

}  // namespace tutti::run
