module example.org/driver

go 1.18
