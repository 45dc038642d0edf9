#include "src/train/annotations.h"

#include <doctest/doctest.h>

#include "tests/train/temporary_folder.h"

namespace lowtide {
namespace {

const std::string kObject =
    "<object><name>Tree</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30.5</xmax>"
    "<ymax>40</ymax></bndbox></object>";

std::string voc(const std::string& inside) {
  return "<annotation>\n<filename>a.png</filename>\n<size><width>50</width><height>60</height>"
         "</size>\n" +
         inside + "\n</annotation>";
}

}  // namespace

TEST_CASE("a VOC file gives its image, size and boxes") {
  const VocAnnotation read = parse_voc(voc(kObject + kObject), "a.xml");
  CHECK(read.image_name == "a.png");
  CHECK(read.width == 50);
  CHECK(read.height == 60);
  REQUIRE(read.boxes.size() == 2);
  CHECK(read.boxes[0] == Box{1, 2, 30.5f, 40});
}

TEST_CASE("a VOC file without objects has no boxes") {
  CHECK(parse_voc(voc(""), "a.xml").boxes.empty());
}

TEST_CASE("text that is not XML is refused with its line") {
  const std::string error =
      error_of([] { parse_voc("<annotation>\n\n<size></annotation>", "a.xml"); });
  CHECK(error.find("a.xml, line 3") != std::string::npos);
  CHECK(error.find("[LT0510]") != std::string::npos);
}

TEST_CASE("an XML file of another kind is refused with its root element") {
  const std::string error = error_of([] { parse_voc("<kml></kml>", "a.xml"); });
  CHECK(error.find("<kml>") != std::string::npos);
  CHECK(error.find("[LT0510]") != std::string::npos);
}

TEST_CASE("every prefix of a VOC file is read or refused") {
  const std::string whole = voc(kObject);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const std::string error = error_of([&] { parse_voc(whole.substr(0, length), "a.xml"); });
    CHECK(error.find("[LT0510]") != std::string::npos);
  }
}

TEST_CASE("a bound that is missing or no number is refused with its line and name") {
  const std::string missing = error_of([] {
    parse_voc(voc("<object><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>3</xmax></bndbox></object>"),
              "a.xml");
  });
  CHECK(missing.find("line 4: <ymax> of <bndbox> is missing") != std::string::npos);
  const std::string word = error_of([] {
    parse_voc(voc("<object><bndbox><xmin>1</xmin><ymin>one</ymin><xmax>3</xmax><ymax>4</ymax>"
                  "</bndbox></object>"),
              "a.xml");
  });
  CHECK(word.find("<ymin> of <bndbox> is 'one'") != std::string::npos);
}

TEST_CASE("a box that is empty, upside down or not finite is refused with its numbers") {
  for (const char* bounds : {"5,1,5,9", "9,1,5,9", "1,9,5,2", "nan,1,5,9", "1,1,inf,9"}) {
    const std::string error = error_of([&] {
      parse_box_table(std::string("image_path,xmin,ymin,xmax,ymax\na.png,") + bounds + "\n",
                      "t.csv");
    });
    CHECK_MESSAGE(error.find("[LT0512]") != std::string::npos, error);
    CHECK(error.find("t.csv, line 2") != std::string::npos);
  }
}

TEST_CASE("a table gives the boxes of each image, whatever the order of its columns") {
  const auto table = parse_box_table(
      "label,ymax,xmax,ymin,xmin,image_path\r\n"
      "Tree,4,3,2,1,b.png\r\n"
      "\"a, \"\"quoted\"\"\nlabel\",8,7,6,5,\"a.png\"\r\n"
      "Tree,40,30,20,10,b.png",
      "t.csv");
  REQUIRE(table.has_value());
  REQUIRE(table->size() == 2);
  CHECK(table->at("a.png") == std::vector<Box>{{5, 6, 7, 8}});
  CHECK(table->at("b.png") == std::vector<Box>{{1, 2, 3, 4}, {10, 20, 30, 40}});
}

TEST_CASE("a row with empty bounds names an image without boxes") {
  const auto table = parse_box_table("image_path,xmin,ymin,xmax,ymax\na.png,,,,\n", "t.csv");
  REQUIRE(table.has_value());
  CHECK(table->at("a.png").empty());
}

TEST_CASE("a table of something else is not taken for boxes") {
  CHECK_FALSE(parse_box_table("Dead,0\nAlive,1\n", "t.csv").has_value());
  CHECK_FALSE(parse_box_table("", "t.csv").has_value());
  CHECK_FALSE(parse_box_table("image_path,xmin,ymin,xmax\n", "t.csv").has_value());
}

TEST_CASE("a bad row is refused with its line") {
  const std::string header = "image_path,xmin,ymin,xmax,ymax\na.png,1,2,3,4\n";
  CHECK(error_of([&] {
          parse_box_table(header + "a.png,1,2,3\n", "t.csv");
        }).find("t.csv, line 3: 4 fields, and the header has 5") != std::string::npos);
  CHECK(error_of([&] {
          parse_box_table(header + "a.png,1,2,x,4\n", "t.csv");
        }).find("line 3: xmax is 'x'") != std::string::npos);
  CHECK(error_of([&] {
          parse_box_table(header + "a.png,1,,3,4\n", "t.csv");
        }).find("1 of the four bounds are empty") != std::string::npos);
  CHECK(error_of([&] {
          parse_box_table(header + ",1,2,3,4\n", "t.csv");
        }).find("the image's name is empty") != std::string::npos);
  CHECK(error_of([&] {
          parse_box_table(header + "\"a.png,1,2,3,4\n", "t.csv");
        }).find("the quote opened in line 3") != std::string::npos);
}

TEST_CASE("boxes are cut to the image, and refused when they lie outside it") {
  CHECK(cut_to_image({{-0.5f, 0, 20.5f, 10}}, 20, 10, "a.xml") == std::vector<Box>{{0, 0, 20, 10}});
  for (const Box& box : {Box{0, 0, 22, 5}, Box{-2, 0, 5, 5}, Box{20, 0, 21, 5}, Box{0, 5, 5, 12}}) {
    const std::string error = error_of([&] { cut_to_image({box}, 20, 10, "a.xml"); });
    CHECK(error.find("20 x 10 pixels") != std::string::npos);
    CHECK(error.find("[LT0512]") != std::string::npos);
  }
}

}  // namespace lowtide
