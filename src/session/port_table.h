// The ports of a Program by name: which can be fed, assigned and fetched, and when.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "program/program.h"
#include "tessera/graph.h"

namespace tessera {

class PortTable {
 public:
  /// scalars: those of the program, then the sizes of bounded dims that it does not need. Throws a
  /// usage error for a guard that is no output of one element.
  PortTable(const Program& program, const Graph& graph, const std::vector<std::string>& scalars,
            const std::vector<std::string>& guards);

  /// The port of an input, or of a parameter or state. Throws a usage error with the nearest name.
  int input(const std::string& name) const;
  int stored(const std::string& name) const;
  /// The port that holds `name` after a run of function `last` (-1: none has run). Throws a usage
  /// error that says which function makes it, or with the nearest name.
  int readable(const std::string& name, int last) const;
  /// The input `name` of the graph, if no function reads it; else null. It has no memory.
  const Port* unread_input(const std::string& name) const;
  /// The guards of a function.
  const std::vector<int>& guards(int function) const { return guards_[function]; }

  /// The input `name` has a value: functions that read the same input have a port each.
  void note_given(const std::string& name);
  /// The same for inputs whose buffer is lent by the host program.
  void note_lent(const std::map<int, void*>& lent);
  /// The dims of which `is_resized(scalar)` is true have another size from here on: inputs with
  /// such a dim have to be fed again, outputs to be made again. `when`: "the dim 'n' had size 5".
  void expire(const std::string& when, const std::function<bool(int scalar)>& is_resized);
  /// The outputs of the function are made again.
  void renew(int function);
  /// Throws a usage error if the value of the port has expired.
  void require_current(int port) const;
  /// Throws a usage error if an input of the function has no value, or one that has expired.
  void require_given(int function) const;

 private:
  int find(const std::string& name, const std::vector<int>& among, const char* what) const;

  const Program& program_;
  std::vector<int> inputs_;  ///< of all functions
  std::vector<Port> unread_;
  std::vector<char> given_, lent_;    ///< by port
  std::vector<std::string> expired_;  ///< by port: since when; "": it has not
  /// By function: its outputs, parameters, state and inputs. Behind the last: without outputs.
  std::vector<std::vector<int>> readable_;
  std::vector<std::vector<int>> guards_;
};

}  // namespace tessera
