#include "tools/bench/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "tools/bench/cases/cases.h"
#include "tools/bench/workload/gradient_set.h"
#include "tools/bench/workload/sizes.h"
#include "tools/run/child.h"
#include "tutti/backends/plugins.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/core/settings/option_table.h"
#include "tutti/core/settings/version.h"
#include "tutti/kernels/reduce.h"

namespace tutti::bench {

namespace {

// The texts of the options, before they are checked.
struct Words {
  std::string bytes = "4..64M", factor = "4", dtype = "f32", op = "sum", root = "0", way, place;
  std::string ranks, elements, backward, steps, calls, warmup, repetitions, iterations, repetition;
};

Error bad_input(const std::string& why) { return Error(ErrorCode::invalid_argument, why); }

// Returns the enumeration value with this name.
template <class Enum>
Enum parse_name(std::string_view option, const std::string& word,
                const std::vector<Enum>& candidates) {
  std::vector<std::string> names;
  for (const auto candidate : candidates) {
    if (to_string(candidate) == word) return candidate;
    names.emplace_back(to_string(candidate));
  }
  throw bad_input(fmt::format("{} {}: expected one of {}", option, word, fmt::join(names, ", ")));
}

int64_t parse_count(std::string_view option, const std::string& word, int64_t low, int64_t high) {
  const auto number = parse_integer(word, low, high);
  if (!number)
    throw bad_input(
        fmt::format("{} {}: not a whole number from {} to {}", option, word, low, high));
  return *number;
}

double parse_milliseconds(std::string_view option, const std::string& word) {
  const auto number = parse_number(word, 0.001, 1e6);
  if (!number)
    throw bad_input(fmt::format("{} {}: not a number of milliseconds above 0", option, word));
  return *number;
}

template <class Enum>
std::vector<Enum> all_values(int count) {
  std::vector<Enum> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<Enum>(i));
  return values;
}

void add_case_options(CLI::App& app, const Case& entry, Settings& settings, Words& words) {
  const auto takes = [&](unsigned group) { return (entry.options & group) != 0; };
  if (takes(kSizes)) {
    app.add_option("--bytes", words.bytes,
                   "Sizes of the whole buffer: 4..256M, 4,64K,1M or one (default 4..64M)")
        ->type_name("SIZES");
    app.add_option("--factor", words.factor, "Factor between the sizes of a range (default 4)")
        ->type_name("N");
    app.add_option("--plot", settings.plot, "Write a plot of time over size, as SVG")
        ->type_name("FILE");
  }
  if (takes(kDtype))
    app.add_option("--dtype", words.dtype, "f64 f32 f16 bf16 i8 ... u64 bool (default f32)")
        ->type_name("TYPE");
  if (takes(kOp))
    app.add_option("--op", words.op, "sum average min max product band bor bxor (default sum)")
        ->type_name("OP");
  if (takes(kRoot))
    app.add_option("--root", words.root, "Rank of the root (default 0)")->type_name("RANK");
  if (takes(kPlacement))
    app.add_option("--place", words.place,
                   "In place: in; out of place: out; or both (default: both, if both exist)")
        ->type_name("WHERE");
  if (takes(kSet)) {
    app.add_option("--set", settings.set,
                   "resnet50, gpt2, small1000 or a CSV file (default resnet50)")
        ->type_name("NAME");
    app.add_option("--elements", words.elements,
                   "Elements of each tensor, instead of the numbers in the set")
        ->type_name("N");
  }
  if (takes(kBackward))
    app.add_option("--backward-ms", words.backward, "Length of the backward pass (default 50)")
        ->type_name("MS");
  if (takes(kSteps))
    app.add_option("--steps", words.steps, "Steps to count (default 1000)")->type_name("N");
  if (takes(kCalls)) {
    app.add_option("--calls", words.calls, "Calls to time (default 20000)")->type_name("N");
    app.add_flag("--polled", settings.polled,
                 "Ask Work::done() instead of calling Work::wait(), which drives the engine");
  }
  if (takes(kTiming | kFresh))
    app.add_option("--repetitions", words.repetitions, "Repetitions (default 11)")->type_name("N");
  if (takes(kTiming)) {
    app.add_option("--warmup", words.warmup, "Iterations before anything is timed (default 5)")
        ->type_name("N");
    app.add_option("--iterations", words.iterations,
                   "Iterations of each repetition (default: as many as fill --repetition-ms)")
        ->type_name("N");
    app.add_option("--repetition-ms", words.repetition, "Length of a repetition (default 20)")
        ->type_name("MS");
  }
  if (entry.ways.size() > 1) {
    std::vector<std::string_view> ways;
    for (const auto way : entry.ways) ways.push_back(to_string(way));
    app.add_option("--way", words.way,
                   fmt::format("{} (default {})", fmt::join(ways, ", "), ways.front()))
        ->type_name("WAY");
  }
}

void add_common_options(CLI::App& app, Settings& settings, Words& words) {
  app.add_option("-n,--ranks", words.ranks,
                 "Without a launcher: how many ranks to start (default 2)")
      ->type_name("N");
  app.add_option("--backend", settings.backend, "auto, shm, tcp, ... (default: TUTTI_BACKEND)")
      ->type_name("NAME");
  app.add_flag("--pin", settings.pin, "Bind each rank to a core of its own");
  app.add_option("--json", settings.json, "Append one JSON object per row; - is standard output")
      ->type_name("FILE");
  app.add_option("--csv", settings.csv, "Append the same fields as CSV; - is standard output")
      ->type_name("FILE");
  app.add_option("--sample-file", settings.sample_file)->group("");
}

// Checks the options as far as a rank can without the other ranks.
void take_words(const Case& entry, const Words& words, Settings& settings) {
  if (!words.ranks.empty())
    settings.ranks = static_cast<int>(parse_count("--ranks", words.ranks, 1, 1024));
  if (!settings.backend.empty() && settings.backend != "auto") {
    Options options;
    read_settings(run::own_variables(), options);
    load_backends(settings.backend, {}, backend_folders(options));
  }
  settings.bytes = parse_sizes(words.bytes, parse_count("--factor", words.factor, 2, 1 << 20));
  settings.dtype = parse_name("--dtype", words.dtype, all_values<DataType>(kDataTypeCount));
  settings.op = parse_name("--op", words.op, all_values<ReduceOp>(kReduceOpCount));
  if ((entry.options & kOp) && !can_reduce(settings.dtype, settings.op))
    throw bad_input(fmt::format("--op {} cannot be applied to {}", to_string(settings.op),
                                to_string(settings.dtype)));
  settings.root = static_cast<int>(parse_count("--root", words.root, 0, 1023));
  if (settings.ranks > 0 && settings.root >= settings.ranks)
    throw bad_input(
        fmt::format("--root {}: there are ranks 0 to {}", settings.root, settings.ranks - 1));
  if (!words.way.empty()) settings.way = parse_name("--way", words.way, entry.ways);
  if (words.place == "in")
    settings.placement = Placement::in_place;
  else if (words.place == "out")
    settings.placement = Placement::out_of_place;
  else if (!words.place.empty() && words.place != "both")
    throw bad_input(fmt::format("--place {}: expected in, out or both", words.place));
  if (!words.elements.empty())
    settings.elements = parse_count("--elements", words.elements, 1, int64_t{1} << 36);
  if (entry.options & kSet) load_gradient_set(settings.set, settings.elements);
  if (!words.backward.empty())
    settings.backward_ms = parse_milliseconds("--backward-ms", words.backward);
  if (!words.steps.empty()) settings.steps = parse_count("--steps", words.steps, 1, 1'000'000'000);
  if (!words.calls.empty()) settings.calls = parse_count("--calls", words.calls, 1, 100'000'000);
  if (!words.warmup.empty())
    settings.warmup = static_cast<int>(parse_count("--warmup", words.warmup, 0, 1'000'000));
  if (!words.repetitions.empty())
    settings.repetitions =
        static_cast<int>(parse_count("--repetitions", words.repetitions, 1, 1'000'000));
  if (!words.iterations.empty())
    settings.iterations = parse_count("--iterations", words.iterations, 1, 1'000'000'000);
  if (!words.repetition.empty())
    settings.repetition_ms = parse_milliseconds("--repetition-ms", words.repetition);
}

std::string overview() {
  std::string text =
      "Measures the library's operations and checks their results.\n\n"
      "Usage: tutti-bench CASE [OPTIONS]\n\n"
      "Cases:\n";
  for (const auto& entry : all_cases())
    text += fmt::format("  {:<16} {}\n", entry.name, entry.about);
  return text +
         "\ntutti-bench CASE --help shows the options of a case.\n\n"
         "Examples:\n"
         "  tutti-bench allreduce --bytes 4..256M --ranks 2 --backend shm\n"
         "  tutti-run -np 4 tutti-bench gradients --set gpt2 --way arena --json rows\n"
         "  mpirun -np 2 --bind-to core tutti-bench latency\n";
}

run::Refusal usage_error(const std::string& why, std::string_view case_name) {
  return {2, fmt::format("tutti-bench: {}; see tutti-bench {}{}--help\n", why, case_name,
                         case_name.empty() ? "" : " ")};
}

}  // namespace

Settings parse_command_line(const std::vector<std::string>& arguments) {
  if (arguments.empty()) throw usage_error("which case?", "");
  if (arguments.front() == "--help" || arguments.front() == "-h") throw run::Refusal{0, overview()};
  if (arguments.front() == "--version")
    throw run::Refusal{0, fmt::format("tutti-bench {}\n", kVersion)};
  Settings settings;
  std::string_view known_case;
  std::string help;
  try {
    const auto& entry = find_case(arguments.front());
    known_case = entry.name;
    settings.case_name = entry.name;
    Words words;
    CLI::App app(std::string(entry.about), fmt::format("tutti-bench {}", entry.name));
    if (!entry.details.empty()) app.footer(std::string(entry.details));
    add_case_options(app, entry, settings, words);
    add_common_options(app, settings, words);
    app.allow_extras();
    help = app.help();
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend() - 1));
    if (const auto rest = app.remaining(); !rest.empty())
      throw bad_input(fmt::format("{} is not an option of {}", rest.front(), entry.name));
    take_words(entry, words, settings);
  } catch (const CLI::CallForHelp&) {
    throw run::Refusal{0, help};
  } catch (const CLI::ParseError& error) {
    throw usage_error(error.what(), known_case);
  } catch (const Error& error) {
    throw usage_error(error.what(), known_case);
  }
  return settings;
}

}  // namespace tutti::bench
