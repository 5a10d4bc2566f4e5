from service.cli import app

app(prog_name="perennial")
