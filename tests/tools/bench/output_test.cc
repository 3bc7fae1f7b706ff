// The output of the benchmark: records and the plot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <sstream>

#include "tools/bench/report/plot.h"
#include "tools/bench/report/record.h"
#include "tutti/base/text.h"

namespace tutti::bench {
namespace {

using testing::ElementsAre;

std::vector<std::string> keys(const nlohmann::ordered_json& json) {
  std::vector<std::string> names;
  for (const auto& [name, value] : json.items()) names.push_back(name);
  return names;
}

Record sample() {
  Record record;
  record.case_name = "allreduce";
  record.way = "blocking";
  record.bytes = 4 << 20;
  record.ranks = 2;
  record.transport = "shm";
  record.time_us = 369.12345;
  record.min_us = 300;
  record.max_us = 400.5;
  record.repetitions = 11;
  record.iterations = 54;
  record.extra["note"] = "a \"quoted\", word";
  return record;
}

TEST(Record, JsonHasTheFieldsThatOtherProgramsHave) {
  const auto json = nlohmann::ordered_json::parse(to_json(sample()));
  EXPECT_THAT(keys(json), ElementsAre("program", "case", "way", "in_place", "set", "bytes", "dtype",
                                      "op", "ranks", "transport", "time_us", "min_us", "max_us",
                                      "repetitions", "iterations", "wrong", "extra"));
  EXPECT_EQ(json["program"], "tutti");
  EXPECT_EQ(json["in_place"], true);
  EXPECT_EQ(json["bytes"], 4'194'304);
  EXPECT_EQ(json["time_us"], 369.123);
  EXPECT_EQ(json["wrong"], 0);
}

TEST(Record, PercentilesBelongToLatencyOnly) {
  auto record = sample();
  record.has_percentiles = true;
  record.p50_us = 1.5;
  record.p99_us = 9;
  const auto json = nlohmann::ordered_json::parse(to_json(record));
  EXPECT_EQ(json["p50_us"], 1.5);
  EXPECT_EQ(json["p99_us"], 9);
}

TEST(Record, CsvHasAColumnForEachFieldAndQuotes) {
  EXPECT_EQ(csv_header(),
            "program,case,way,in_place,set,bytes,dtype,op,ranks,transport,time_us,min_us,max_us,"
            "p50_us,p99_us,repetitions,iterations,wrong,extra");
  EXPECT_EQ(to_csv(sample()),
            "tutti,allreduce,blocking,true,,4194304,f32,sum,2,shm,369.123,300.0,400.5,,,11,54,0,"
            R"("{""note"":""a \""quoted\"", word""}")");
}

boost::property_tree::ptree parse_xml(const std::string& text) {
  std::istringstream stream(text);
  boost::property_tree::ptree tree;
  boost::property_tree::read_xml(stream, tree);  // throws if it is not well-formed
  return tree;
}

TEST(Plot, IsWellFormedAndHasALineForEachSeries) {
  const auto svg = parse_xml(draw_svg("a < b & \"c\"", {{"one & two", {{4, 0.2}, {1 << 20, 103}}},
                                                        {"<three>", {{4, 1.5e6}}}}))
                       .get_child("svg");
  EXPECT_EQ(svg.get<std::string>("title"), "a < b & \"c\"");
  EXPECT_EQ(svg.count("polyline"), 2u);
  EXPECT_EQ(svg.count("circle"), 3u);
  std::vector<std::string> texts;
  for (const auto& [tag, child] : svg)
    if (tag == "text") texts.push_back(child.data());
  EXPECT_THAT(texts, testing::IsSupersetOf({"one & two", "<three>", "bytes", "1M", "1 µs", "1 s"}));
}

double number_of(const boost::property_tree::ptree& element, const std::string& attribute) {
  const auto text = element.get<std::string>("<xmlattr>." + attribute);
  return parse_number(text, 0, 1000).value_or(-1);
}

TEST(Plot, PointsLieWithinTheAxesInOrder) {
  const auto svg =
      parse_xml(draw_svg("t", {{"s", {{4, 0.07}, {1024, 1}, {1 << 28, 30'000}}}})).get_child("svg");
  double x = 80, y = 400;
  for (const auto& [tag, child] : svg) {
    if (tag != "circle") continue;
    const double cx = number_of(child, "cx"), cy = number_of(child, "cy");
    EXPECT_GE(cx, x);
    EXPECT_LT(cy, y);
    x = cx, y = cy;
  }
  EXPECT_LE(x, 740);
  EXPECT_GE(y, 48);
}

TEST(Plot, OnePointIsEnough) {
  EXPECT_EQ(parse_xml(draw_svg("t", {{"s", {{4, 1}}}})).get_child("svg").count("circle"), 1u);
}

}  // namespace
}  // namespace tutti::bench
