// Renders templates by Go's own text/template: a list of cases on the input, the same list with results on the output.
// Run by test_reference.py; `parseJSON`, `split` and `loop` stand in for consul-template's functions of these names.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/template"
)

type result struct {
	Template string  `json:"template"`
	Output   *string `json:"output,omitempty"`
	Fails    string  `json:"fails,omitempty"`
}

func parseJSON(text string) (any, error) {
	var value any
	err := json.Unmarshal([]byte(text), &value)
	return value, err
}

func split(separator, text string) []string { return strings.Split(text, separator) }

func loop(bounds ...int) <-chan int64 {
	start, stop := 0, bounds[len(bounds)-1]
	if len(bounds) > 1 {
		start = bounds[0]
	}
	numbers := make(chan int64)
	go func() {
		for at := start; at < stop; at++ {
			numbers <- int64(at)
		}
		close(numbers)
	}()
	return numbers
}

func render(one *result) {
	functions := template.FuncMap{"parseJSON": parseJSON, "split": split, "loop": loop}
	parsed, err := template.New("").Option("missingkey=zero").Funcs(functions).Parse(one.Template)
	if err != nil {
		one.Fails = "parse"
		return
	}
	var output bytes.Buffer
	if err := parsed.Execute(&output, nil); err != nil {
		one.Fails = "run"
		if os.Getenv("SHOW_ERRORS") != "" {
			fmt.Fprintln(os.Stderr, one.Template, "=>", err)
		}
		return
	}
	text := output.String()
	one.Output = &text
}

func main() {
	var cases []*result
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		panic(err)
	}
	for _, one := range cases {
		one.Output, one.Fails = nil, ""
		render(one)
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(cases); err != nil {
		panic(err)
	}
}
