// Package trial is what the programs that try a client have in common: PROGRAM AREA BROKER NAME, where NAME begins every
// topic and group; exit 1 and a line if something does not hold.
package trial

import (
	"context"
	"fmt"
	"os"
	"time"
)

// Partitions of the topics that are tried.
const Partitions = 3

var (
	Ctx, _       = context.WithTimeout(context.Background(), 90*time.Second)
	Broker, Name string
)

// Run tries the area that the command line names.
func Run(areas map[string]func()) {
	Broker, Name = os.Args[2], os.Args[3]
	areas[os.Args[1]]()
}

// Must is the value, unless there is an error.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// Check ends the program if there is an error.
func Check(err error) {
	if err != nil {
		Fail("%v", err)
	}
}

// Fail says what does not hold, and ends the program.
func Fail(format string, arguments ...any) {
	fmt.Printf(format+"\n", arguments...)
	os.Exit(1)
}

// Equal compares how two values print.
func Equal(seen, expected any, what string) {
	if fmt.Sprint(seen) != fmt.Sprint(expected) {
		Fail("%s: %v instead of %v", what, seen, expected)
	}
}
