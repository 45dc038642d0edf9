#include "src/report/redaction.h"

#include <doctest/doctest.h>

using namespace lowtide;

TEST_CASE("paths, hosts, addresses and people go, what helps stays") {
  Redactor redactor;
  CHECK(redactor.text("/home/ann/exp/train.py:12 in step") == "<path>/train.py:12 in step");
  CHECK(redactor.text("~/exp/train.py") == "<path>/train.py");
  CHECK(redactor.text("C:\\Users\\ann\\train.py") == "<path>/train.py");
  CHECK(redactor.text("/opt/v/lib/python3.11/site-packages/torch/optim/adam.py") ==
        "<path>/site-packages/torch/optim/adam.py");
  CHECK(redactor.text("ann@node7.lab.example.org says") == "<user>@<host> says");
  CHECK(redactor.text("on gpu-node7.lab.org.") == "on <host>.");
  CHECK(redactor.text("node107: task 0") == "<host>: task 0");
  CHECK(redactor.text("ip=10.0.0.1)") == "ip=<address>)");
  CHECK(redactor.text("/dev/shm is full") == "/dev/shm is full");
  CHECK(redactor.text("1.50 GiB, torch 2.13.0, 5/7, and/or") ==
        "1.50 GiB, torch 2.13.0, 5/7, and/or");
  CHECK(redactor.text("(https://pytorch.org/docs/stable/notes/cuda.html)") ==
        "(https://pytorch.org/docs/stable/notes/cuda.html)");
  CHECK(redactor.text("") == "");
}

TEST_CASE("a user's name in a path is replaced wherever else it stands") {
  Redactor redactor;
  redactor.learn(std::string_view("/home/annabel/exp/train.py"));
  CHECK(redactor.text("job of annabel failed, annabella did not") ==
        "job of <user> failed, annabella did not");
}

TEST_CASE("a folder that only looks like a home is none, and names are learned from JSON") {
  Redactor redactor;
  Json value = Json::object();
  value["a"].push_back("C:\\Users\\annabel\\x.py");
  value["b"] = "src/home/logs/x";
  redactor.learn(value);
  CHECK(redactor.text("annabel and logs") == "<user> and logs");
}

TEST_CASE("JSON keeps its keys and numbers") {
  Redactor redactor;
  Json value = Json::object();
  value["/home/ann/x"] = "/home/ann/x";
  value["n"] = 3;
  value["list"].push_back("/home/ann/y");
  CHECK(to_text(redactor.json(value)) == R"({"/home/ann/x":"<path>/x","n":3,"list":["<path>/y"]})");
}
